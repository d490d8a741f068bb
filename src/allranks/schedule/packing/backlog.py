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
        self._taken_from = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._tasks)

    def add(self, task: Task) -> None:
        """Put a task at the end of the line."""
        self._tasks.append(task)

    def clear(self) -> list[Task]:
        """Take out all tasks, in their order."""
        tasks, self._tasks = self._tasks, []
        return tasks

    def put_back(self, task: Task) -> None:
        """Put the task that was taken last back to its place."""
        self._tasks.insert(self._taken_from, task)

    def take_first(self) -> Task:
        """Take out the first task, whether or not it fits.

        Raises:
            IndexError: There is none.
        """
        return self._pop(0)

    @property
    def first(self) -> Task | None:
        """The task that everything else must not hold up."""
        return self._tasks[0] if self._tasks else None

    def _pop(self, place: int) -> Task:
        self._taken_from = place
        return self._tasks.pop(place)

    def take(self, now: float, free: Room, running: Collection[Running], before: Room | None = None) -> Task | None:
        """Take out the task that is to begin now; None where the next one has to wait.

        Args:
            now: Seconds, on the clock of `running`.
            free: What nobody uses. Less than the rest of all, where others use the host too.
            running: What has begun and not ended.
            before: What a task waits for that is before all of these, and has been taken out already.
        """
        if not self._tasks:
            return None
        if before is None and free.holds(self._room(self._tasks[0])):
            return self._pop(0)
        if before is None:
            place = self._behind(self._room(self._tasks[0]), 1, now, free, running)
        else:
            place = self._behind(before, 0, now, free, running)
        return None if place is None else self._pop(place)

    def _room(self, task: Task) -> Room:
        return task.room.within(self._total)

    def _behind(
        self, wanted: Room, place_from: int, now: float, free: Room, running: Collection[Running]
    ) -> int | None:
        """The place of a task that does not hold up the one that wants so much."""
        if not any(free):
            return None
        turn, beside = self._turn_of(wanted, now, free, running)
        for place, task in enumerate(self._tasks[place_from:], place_from):
            room = self._room(task)
            if free.holds(room) and (now + task.seconds <= turn or beside.holds(room)):
                return place
        return None

    def _turn_of(self, wanted: Room, now: float, free: Room, running: Collection[Running]) -> tuple[float, Room]:
        """When so much is expected to be free, and what is free beside it then."""
        for ends, each in sorted(((_end(each, now), each) for each in running), key=lambda pair: pair[0]):
            free = free.plus(self._room(each.task))
            if free.holds(wanted):
                return ends, free.minus(wanted)
        # Others hold what it needs, and nobody knows for how long: whatever takes of that may hold it up.
        return now, Room(*(max(have - want, 0) for have, want in zip(free, wanted, strict=True)))


def _end(each: Running, now: float) -> float:
    expected = each.began + each.task.seconds
    return expected if now < expected else now + _OVERTIME * (now - each.began)
