"""Tasks that wait for their turn, and which of them begins next.

The first in line begins as soon as it fits. One further back may begin before it where that does not hold it up: when
it is expected to be over by then, or fits beside it. So nothing idles that somebody could use, and no task, however
large, waits for more than those before it. (Known as EASY backfilling: Lifka 1995, the ANL/IBM SP scheduling system.)
"""

from collections.abc import Collection, Iterable

from allranks.schedule.packing.task import Room, Running, Task

_OVERTIME = 0.25
"""The part of its time so far that a task which is late is expected to take yet."""


class Backlog:
    """Tasks in the order of their importance.

    Args:
        tasks: The most important first.
        total: All that there is; a task that takes more runs alone.
    """

    def __init__(self, tasks: Iterable[Task], total: Room) -> None:
        self._tasks = list(tasks)
        self._total = total

    def __len__(self) -> int:
        """How many wait."""
        return len(self._tasks)

    def add(self, task: Task) -> None:
        """Put a task at the end."""
        self._tasks.append(task)

    def put_back(self, task: Task) -> None:
        """Put a task back to the front."""
        self._tasks.insert(0, task)

    def take_first(self) -> Task:
        """Take out the first task, whether or not it fits.

        Raises:
            IndexError: There is none.
        """
        return self._tasks.pop(0)

    def clear(self) -> list[Task]:
        """Take out all that wait."""
        left, self._tasks = self._tasks, []
        return left

    @property
    def first(self) -> Task | None:
        """The task that everything else must not hold up."""
        return self._tasks[0] if self._tasks else None

    def take(self, now: float, free: Room, running: Collection[Running]) -> Task | None:
        """Take out the task that is to begin now; None where the next one has to wait.

        Args:
            now: Seconds, on the clock of `running`.
            free: What nobody uses. Less than the rest of all, where others use the host too.
            running: What has begun and not ended.
        """
        if not self._tasks:
            return None
        first = self._tasks[0]
        if free.holds(self._room(first)):
            return self._tasks.pop(0)
        place = self._of_those_behind(now, free, running)
        return None if place is None else self._tasks.pop(place)

    def _room(self, task: Task) -> Room:
        return task.room.within(self._total)

    def _of_those_behind(self, now: float, free: Room, running: Collection[Running]) -> int | None:
        if not any(free):
            return None
        turn, beside = self._turn_of_first(now, free, running)
        for place, task in enumerate(self._tasks[1:], 1):
            room = self._room(task)
            if free.holds(room) and (now + task.seconds <= turn or beside.holds(room)):
                return place
        return None

    def _turn_of_first(self, now: float, free: Room, running: Collection[Running]) -> tuple[float, Room]:
        """When the first in line is expected to fit, and what is free beside it then."""
        wanted = self._room(self._tasks[0])
        for ends, each in sorted(((_end(each, now), each) for each in running), key=lambda pair: pair[0]):
            free = free.plus(self._room(each.task))
            if free.holds(wanted):
                return ends, free.minus(wanted)
        # Others hold what it needs, and nobody knows for how long: whatever takes of that may hold it up.
        return now, Room(*(max(have - want, 0) for have, want in zip(free, wanted, strict=True)))


def _end(each: Running, now: float) -> float:
    expected = each.began + each.task.seconds
    return expected if now < expected else now + _OVERTIME * (now - each.began)
