"""A job that waits for its nodes or has them: its place in the queue, in words, and what ended it.

A queue's words explain an end, and decide nothing else: while it does not answer, a job is what its files say.
"""

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from allranks.agent import clock
from allranks.agent.evidence import read
from allranks.engines.base import Placement
from allranks.errors import EngineError
from allranks.plugins.slurm.agent import node_files as files
from allranks.plugins.slurm.agent.node_files import AgentExit
from allranks.plugins.slurm.file_calls import FileCalls

_LATE_FILES: Final = 10.0
"""Seconds that files of an ended job may take to be seen here: NFS keeps names for up to 30, and looks for new ones
after 3 to 5 where a folder changes. A node whose files change meanwhile goes on, whatever the queue says."""

SILENT: Final = 60.0
"""Seconds without an answer of the queue, or of the shared file system, until that is reported."""

_BEGINNING: Final = 600.0
"""Seconds for nodes that a job was given to begin, for which they may have to fetch an image. A cluster that loses the
first of them by then may call the job running for ever."""

OWNER_BEAT: Final = 15.0
"""Seconds between two signs of life of the orchestrator, for those on other hosts."""

_PATIENCE: Final = 300.0
"""Seconds without an answer of the shared file system until the job is given up."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a queue tells of a job."""

    waiting: str = ""  # why it has no nodes yet, as in "queued (Resources)"; empty for nothing to tell
    nodes: str = ""  # those that it has, for people
    is_running: bool = False  # it has been given its nodes
    end: str = ""  # its state if the queue has ended or lost it, as in "NODE_FAIL"; else empty
    cause: str = ""  # what ended it, if that was the cluster and not the job, as in "was canceled"; else empty


class Queue(Protocol):
    """The place where jobs wait for their nodes, and what it tells of each by its name."""

    def look(self, name: str) -> Place:
        """What is known of a job."""

    def cause_at_end(self, name: str) -> str:
        """The cause of the end of a job whose leading agent has ended, which the queue may notice a while later."""

    def cancel(self, name: str) -> None:
        """End a job; one that is not there needs none.

        Raises:
            EngineError: The queue does not answer.
        """


@dataclass(eq=False)
class Allocation:
    """A submitted job, as its agents share it."""

    queue: Queue
    folder: Path
    number: str = ""  # the queue's name for it, for people, as in "SLURM job 12"; empty for none
    told: str = ""  # what was last said of its place in the queue
    is_to_go: bool = False  # it is to get its turn, and its files do not say so yet
    is_ours: bool = False  # this process has asked for its end
    placed: float | None = None  # when its first node began, in seconds since the epoch; None while it is queued
    # When the queue was first seen to have given it nodes that had not begun, on the monotonic clock.
    given: float | None = None
    gone: float | None = None  # when the queue was first seen to have lost or ended it, on the monotonic clock
    lives: float = -math.inf  # when a file of its leading node was last seen to change, on the monotonic clock
    deserted: float = math.inf  # when all nodes but the leading one had ended, on the monotonic clock; infinity before
    owned: Path | None = None  # a file whose time of change says that its orchestrator lives; None for none
    _owned_at: float = -math.inf
    calls: FileCalls = field(default_factory=FileCalls)  # makes all calls on its files
    asked: float | None = None  # since when one of them has had no answer, on the monotonic clock; None for an answer
    on_placed: Callable[[], None] = field(default=lambda: None)

    def news(self) -> Placement | None:
        """What has changed in its place since the last call, in words."""
        if self.placed is None and files.is_there(self.folder / "node-0" / files.PLACED):
            at, now = told_in(self.folder / "node-0" / files.PLACED).get("at"), clock.now()
            self.placed = at if isinstance(at, float) and 0.0 < at <= now else now  # by another clock
            self.on_placed()
        self._go()
        self._own()
        return self._if_new(self._told(self._place))

    @property
    def _place(self) -> Place:
        return self.queue.look(self.folder.name)

    def _own(self) -> None:
        now = time.monotonic()
        if self.owned is not None and now > self._owned_at + OWNER_BEAT:
            self._owned_at = now
            with suppress(OSError):
                os.utime(self.owned)

    def _told(self, place: Place) -> str:
        if self.placed is None:
            return place.waiting
        if self.has_vanished and not self.is_lost:
            return f"given up by the cluster ({place.end}), but its files still change"
        return f"placed on {place.nodes}{self._in_brackets}" if place.nodes and not place.end else ""

    def silence(self) -> Placement | None:
        """What is new of calls that have no answer."""
        return self._if_new(f"{_NO_ANSWER} for {minutes(self.unheard)} min" if self.unheard > SILENT else "")

    def _if_new(self, told: str) -> Placement | None:
        if not told or told == self.told:
            return None
        self.told = told
        return Placement(told, is_placed=self.placed is not None)

    @property
    def unheard(self) -> float:
        """Seconds for which a call on the job's files has had no answer; 0 if all have one."""
        return 0.0 if self.asked is None else time.monotonic() - self.asked

    @property
    def is_unreachable(self) -> bool:
        """Whether the shared file system has not answered for too long."""
        return self.unheard > _PATIENCE

    @property
    def _in_brackets(self) -> str:
        return f" ({self.number})" if self.number else ""

    def named(self, cause: str) -> str:
        """A cause with the queue's name for the job."""
        return f"{cause}; it was {self.number}" if self.number else cause

    def could_not_write(self, trouble: str) -> str:
        """The cause of an end, if that was the shared file system."""
        return self.named(f"could not write to {self.folder.parent} ({trouble})")

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its nodes, which have left no files then."""
        return self.placed is None and not (self.is_ours or self.has_vanished or self._place.is_running)

    @property
    def is_stuck(self) -> bool:
        """Whether the queue says that it runs, and its nodes have not begun in time."""
        if self.placed is not None or not self._place.is_running:
            self.given = None
        elif self.given is None:
            self.given = time.monotonic()
        return self.given is not None and time.monotonic() > self.given + _BEGINNING

    @property
    def has_vanished(self) -> bool:
        """Whether the queue has ended or lost it, and files that it may have left are overdue."""
        if not self._place.end:
            self.gone = None
        elif self.gone is None:
            self.gone = time.monotonic()
        return self.gone is not None and time.monotonic() > self.gone + _LATE_FILES

    @property
    def is_deserted(self) -> bool:
        """Whether the end of its leading node, which ends the others, is overdue: a queue may keep what is left."""
        return time.monotonic() > self.deserted + _LATE_FILES

    @property
    def is_lost(self) -> bool:
        """Whether it has vanished, is deserted or stuck, and no file of its leading node has changed since."""
        is_overdue = self.has_vanished or self.is_deserted or self.is_stuck
        return is_overdue and time.monotonic() > self.lives + _LATE_FILES

    def go(self) -> None:
        """Give it its turn, and again with each look for news if the shared file system refuses it now."""
        self.is_to_go = True
        self.calls.begin(self._go)

    def _go(self) -> None:
        if self.is_to_go:
            with suppress(OSError):
                (self.folder / files.GO).touch()
                self.is_to_go = False

    def hang_up(self) -> None:
        """Ask its supervisors to end their agents, without waiting for the shared file system."""
        self.is_ours = True
        self.calls.begin((self.folder / files.HANG_UP).touch)

    def cancel(self) -> None:
        """Have the queue end it, unless it does not answer."""
        self.is_ours = True
        with suppress(EngineError):
            self.queue.cancel(self.folder.name)

    def cause(self, leader: AgentExit | None) -> str:
        """What ended it, if that was the cluster; else empty."""
        if leader is None:
            return self._cause_without_exit()
        if leader.trouble:
            return self.could_not_write(leader.trouble)
        if self.is_ours or (not leader.signals and leader.status is not None):
            return ""
        # The queue's answers may be older than the end of the leading agent.
        if cause := self.queue.cause_at_end(self.folder.name):
            return self.named(cause)
        told = f"was told to end from outside ({', '.join(leader.signals)})"
        return self.named(told if leader.signals else "has left no exit status of its agent")

    def _cause_without_exit(self) -> str:
        if self.unheard > _LATE_FILES:
            return self.named(f"was given up: {_NO_ANSWER} for {self.unheard:.0f} s")
        if self.is_ours:
            return ""
        place = self._place
        if place.cause:
            return self.named(place.cause)
        if self.is_stuck:
            return self.named(f"was given nodes that have not begun in {_BEGINNING / 60:.0f} min")
        return self._cause_of_absence(place) if self.has_vanished else ""  # its nodes know more

    def _cause_of_absence(self, place: Place) -> str:
        with suppress(OSError):
            if self.calls.ask(lambda: files.is_gone(self.folder / "node-0"), _LATE_FILES):
                return self.named(f"lost its files: {self.folder} was emptied, or removed")
        return f"has left no exit status: {self.number or 'the job'} is {place.end}"


_NO_ANSWER: Final = "the shared file system has not answered"


def minutes(seconds: float) -> int:
    """Whole minutes; beyond four, only every fifth one is told."""
    minutes = int(seconds // 60)
    return minutes if minutes < 5 else minutes // 5 * 5


def told_in(path: Path) -> dict[str, object]:
    """The object in a file of a node; empty if it is not whole."""
    try:
        told = json.loads(read(path))
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
