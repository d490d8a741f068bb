"""What a job takes, and what a host has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self


class Room(NamedTuple):
    """An amount of everything that jobs share.

    Attributes:
        gpus: Number of GPUs.
        cores: Number of CPU cores.
        memory: MiB.
    """

    gpus: int = 0
    cores: int = 0
    memory: int = 0

    def holds(self, other: Self) -> bool:
        """Whether the other amount fits in, of each kind."""
        return self.gpus >= other.gpus and self.cores >= other.cores and self.memory >= other.memory

    def plus(self, other: Self) -> "Room":
        """Both together."""
        return Room(self.gpus + other.gpus, self.cores + other.cores, self.memory + other.memory)

    def minus(self, other: Self) -> "Room":
        """What is left without the other; below zero where it does not fit in."""
        return Room(self.gpus - other.gpus, self.cores - other.cores, self.memory - other.memory)

    def within(self, most: Self) -> "Room":
        """This, of each kind no more than there is at all: who asks for more runs alone."""
        return Room(min(self.gpus, most.gpus), min(self.cores, most.cores), min(self.memory, most.memory))


@dataclass(frozen=True, slots=True)
class Task:
    """A job as the scheduler sees it.

    Attributes:
        number: By which whoever made it knows it.
        room: What it takes while it runs.
        seconds: How long it is expected to run.
    """

    number: int
    room: Room
    seconds: float


class Running(NamedTuple):
    """A task that has begun.

    Attributes:
        began: Seconds, on the clock of whoever asks.
    """

    task: Task
    began: float


def lower_bound(tasks: Sequence[Task], total: Room) -> float:
    """Seconds that no schedule can beat: the longest task, and for each kind all work over all there is."""
    longest = max((task.seconds for task in tasks), default=0.0)
    return max(longest, *(_work(tasks, kind) / most for kind, most in enumerate(total) if most), 0.0)


def _work(tasks: Iterable[Task], kind: int) -> float:
    return sum(task.room[kind] * task.seconds for task in tasks)
