"""Divides tasks among hosts of several kinds so that all finish at about the same time.

The longest task first, each to the host that has least to do so far (LPT: Graham 1969), where seconds count by the part
of the host that a task takes. What is uneven then is mended pair by pair, by how the hosts would pack it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from allranks.schedule.packing.estimate import Capacity, Task, packed_seconds, share

_STEP: Final = 1.005
_LONGER: Final = 50
"""How much longer than wished hosts may work where that makes them even: up to this many steps, a quarter."""

EVEN_KINDS: Final = 0.06
"""The part of the longest time by which another kind of hosts may be done earlier, and nobody looks further."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What hosts of one kind have to do together.

    Attributes:
        seconds: What one host would take for all of it.
        longest: Seconds of its longest task.
        tasks: How many there are, and so how many hosts have something to do.
        least: How many hosts there have to be.
    """

    seconds: float
    longest: float
    tasks: int
    least: int = 1

    def hosts(self, seconds: float) -> int:
        """How many hosts, if each works about so long; for no less time than the longest task takes."""
        return min(self.tasks, max(self.least, round(self.seconds / max(seconds, self.longest))))


def host_counts(works: Sequence[Work], seconds: float, most: int) -> list[int]:
    """How many hosts of each kind.

    Args:
        works: What each kind has to do.
        seconds: What one host should have to do, where there may be so many.
        most: Hosts that there may be, of all kinds together: no fewer than all kinds need at least.
    """
    shortest = next(
        length
        for length in (seconds * _STEP**number for number in count())
        if sum(work.hosts(length) for work in works) <= most
    )
    found = [(length, [work.hosts(length) for work in works]) for length in _lengths(shortest)]
    uneven = [_unevenness(works, counts, length) for length, counts in found]
    wanted = max(EVEN_KINDS, min(uneven))
    return next(counts for (_, counts), each in zip(found, uneven, strict=True) if each <= wanted)


def _lengths(shortest: float) -> list[float]:
    return [shortest * _STEP**number for number in range(_LONGER)]


def _unevenness(works: Sequence[Work], counts: Sequence[int], length: float) -> float:
    """The part of the longest time by which some host is done earlier; of kinds of which one host is enough, none."""
    each = [
        work.seconds / number
        for work, number in zip(works, counts, strict=True)
        if number > 1 and work.longest <= length
    ]
    return 1 - min(each) / max(each) if each else 0.0


EVEN: Final = 0.02
"""The part of its time by which the last host may be later than the first, and nobody cares."""

LOOKED_AT: Final = 12
"""Tasks that are tried in another place, for each mending: those that fit best."""

MOST_PAIRS: Final = 2_500
"""Pairs of tasks that are weighed for an exchange; among more tasks there is one to move."""

EFFORT: Final = 200_000
"""Tasks that are packed in search of something more even, over all tries: a second at most."""

TRIES: Final = 200
"""Tries for each task, where there are few."""


def divide(tasks: Sequence[Task], total: Capacity, count: int) -> list[list[Task]]:
    """Some tasks for each host, none of them idle.

    Args:
        tasks: At least one.
        total: What each host has.
        count: The number of hosts; of more hosts than tasks, those are left out that would have none.

    Returns:
        A list for each host, whose tasks are in the order in which they were given. The same tasks come to the same.
    """
    hosts = _Hosts(_longest_first(tasks, total, min(count, len(tasks))), total)
    hosts.even_out()
    places = {id(task): place for place, task in enumerate(tasks)}
    return [sorted(each, key=lambda task: places[id(task)]) for each in hosts.tasks]


def _longest_first(tasks: Sequence[Task], total: Capacity, count: int) -> list[list[Task]]:
    hosts: list[list[Task]] = [[] for _ in range(count)]
    loads = [(0.0, 0, number) for number in range(count)]
    shares = {room: share(room, total) for room in {task.room for task in tasks}}
    worth = {id(task): task.seconds * shares[task.room] for task in tasks}
    for task in sorted(tasks, key=lambda task: -worth[id(task)]):
        so_far, length, number = loads[0]
        hosts[number].append(task)
        # Of hosts with as much to do, that with fewer tasks: none stays without.
        heapq.heapreplace(loads, (so_far + worth[id(task)], length + 1, number))
    return hosts


class _Hosts:
    """What each host has to do, and how long it takes it."""

    def __init__(self, tasks: list[list[Task]], total: Capacity) -> None:
        self.tasks = tasks
        self._total = total
        self._seconds = [packed_seconds(each, total) for each in tasks]
        self._effort = min(EFFORT, TRIES * sum(map(len, tasks)))

    def even_out(self) -> None:
        """Take tasks off the host that is last, for that which is first, as long as that brings it forward."""
        hosts = set(range(len(self.tasks)))
        while len(hosts) > 1 and self._effort > 0:
            last = max(hosts, key=lambda host: (self._seconds[host], -host))
            first = min(hosts, key=lambda host: (self._seconds[host], host))
            if self._seconds[last] - self._seconds[first] <= EVEN * self._seconds[last]:
                return
            if self._mend(last, first):
                hosts = set(range(len(self.tasks)))
            else:
                hosts.remove(last)  # one task is as long as that, or several that run side by side

    def _mend(self, last: int, first: int) -> bool:
        """Move one task, or exchange two, where both hosts are done before the last one was."""
        half = (self._seconds[last] - self._seconds[first]) / 2

        def misfit(seconds: float) -> float:
            return abs(seconds - half)

        giving = sorted(self.tasks[last], key=lambda task: misfit(task.seconds))
        if len(giving) > 1 and any(self._try(last, first, [task], []) for task in giving[:LOOKED_AT]):
            return True
        if len(giving) * len(self.tasks[first]) > MOST_PAIRS:
            return False
        pairs = [(one, other) for one in giving for other in self.tasks[first] if one.seconds > other.seconds]
        pairs.sort(key=lambda pair: misfit(pair[0].seconds - pair[1].seconds))
        return any(self._try(last, first, [one], [other]) for one, other in pairs[:LOOKED_AT])

    def _try(self, last: int, first: int, there: list[Task], back: list[Task]) -> bool:
        giving = [task for task in self.tasks[last] if task not in there] + back
        taking = [task for task in self.tasks[first] if task not in back] + there
        self._effort -= len(giving) + len(taking)
        seconds = packed_seconds(giving, self._total), packed_seconds(taking, self._total)
        if max(seconds) >= self._seconds[last]:
            return False
        self.tasks[last], self.tasks[first] = giving, taking
        self._seconds[last], self._seconds[first] = seconds
        return True
