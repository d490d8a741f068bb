"""Divides tasks among hosts of several kinds so that all finish at about the same time.

Longest tasks first, each goes to the host that has least to do so far (LPT: Graham 1969); seconds are weighted by the
part of the host that a task takes. Pairs of hosts are then evened out, by how they would pack their tasks.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from allranks.schedule.packing.estimate import Capacity, Task, packed_seconds, share

_STEP: Final = 1.005
_LONGER: Final = 50
"""How much longer than wished hosts may work if that evens them out: up to this many steps, a quarter."""

EVEN_KINDS: Final = 0.06
"""The search ends if no kind of hosts is done earlier than another by more than this part of the longest time."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The total work of the hosts of one kind."""

    seconds: float  # the duration of all of it on one host
    longest: float  # seconds of its longest task
    tasks: int  # how many there are, and so the most hosts that have something to do
    least: int = 1

    def hosts(self, seconds: float) -> int:
        """How many hosts, if each works about this long, but no less than the longest task takes."""
        return min(self.tasks, max(self.least, round(self.seconds / max(seconds, self.longest))))


def host_counts(works: Sequence[Work], seconds: float, most: int) -> list[int]:
    """How many hosts of each kind.

    Args:
        works: What each kind has to do.
        seconds: How long one host should work, if that takes no more hosts than allowed.
        most: The most hosts of all kinds together: no fewer than all kinds need at least.
    """
    shortest = next(
        length
        for length in (seconds * _STEP**number for number in count())
        if sum(work.hosts(length) for work in works) <= most
    )
    lengths = [shortest * _STEP**number for number in range(_LONGER)]
    found = [(length, [work.hosts(length) for work in works]) for length in lengths]
    uneven = [_unevenness(works, counts, length) for length, counts in found]
    wanted = max(EVEN_KINDS, min(uneven))
    return next(counts for (_, counts), each in zip(found, uneven, strict=True) if each <= wanted)


def _unevenness(works: Sequence[Work], counts: Sequence[int], length: float) -> float:
    """The part of the longest time by which some host is done earlier; kinds that need one host do not count."""
    each = [
        work.seconds / number
        for work, number in zip(works, counts, strict=True)
        if number > 1 and work.longest <= length
    ]
    return 1 - min(each) / max(each) if each else 0.0


EVEN: Final = 0.02
"""The last host may be later than the first by this part of its time."""

LOOKED_AT: Final = 12
"""Tasks that each step tries in another place: those that fit best."""

MOST_PAIRS: Final = 2_500
"""Most pairs of tasks that are compared for an exchange; among more tasks there is one to move."""

EFFORT: Final = 200_000
"""Most tasks that the search packs, over all tries: a second at most."""

TRIES: Final = 200
"""Tries for each task, where there are few."""


def divide(tasks: Sequence[Task], total: Capacity, count: int) -> list[list[Task]]:
    """Tasks for each host, with no host idle: there may be fewer hosts than this.

    Returns:
        A list for each host, with its tasks in the given order. The same tasks give the same result.
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
        # Among equally loaded hosts the one with fewer tasks: no host stays empty.
        heapq.heapreplace(loads, (so_far + worth[id(task)], length + 1, number))
    return hosts


class _Hosts:
    """The tasks of each host, and how long they take."""

    def __init__(self, tasks: list[list[Task]], total: Capacity) -> None:
        self.tasks = tasks
        self._total = total
        self._seconds = [packed_seconds(each, total) for each in tasks]
        self._effort = min(EFFORT, TRIES * sum(map(len, tasks)))

    def even_out(self) -> None:
        """Move tasks from the host that ends last to the one that ends first, as long as the last then ends earlier."""
        hosts = set(range(len(self.tasks)))
        while len(hosts) > 1 and self._effort > 0:
            last = max(hosts, key=lambda host: (self._seconds[host], -host))
            first = min(hosts, key=lambda host: (self._seconds[host], host))
            if self._seconds[last] - self._seconds[first] <= EVEN * self._seconds[last]:
                return
            if self._mend(last, first):
                hosts = set(range(len(self.tasks)))
            else:
                hosts.remove(last)  # one task takes that long, or several that run side by side

    def _mend(self, last: int, first: int) -> bool:
        """Move one task, or exchange two, if both hosts then end before the last one did."""
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
