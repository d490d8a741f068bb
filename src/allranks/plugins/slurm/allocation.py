"""A submitted job: its state in the queue, and what ended it.

A job is lost only if the queue has lost it, or it is overdue, and its files no longer change.
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
"""Seconds until files of an ended job are visible here: an NFS client caches names for up to 30 seconds, and looks for
new ones after 3 to 5 if a folder changes. A node whose files still change is alive, whatever the queue reports."""

SILENT: Final = 60.0
"""Seconds without a reply from the queue, or from the shared file system, until that is reported."""

_START_LIMIT: Final = 600.0
"""Seconds for allocated nodes to start; they may have to pull an image. If a cluster loses the first node before that,
it may show the job as running forever."""

OWNER_HEARTBEAT: Final = 15.0
"""Seconds between two heartbeats of the orchestrator, for orchestrators on other hosts."""

_ANSWER_LIMIT: Final = 300.0
"""Seconds without a reply from the shared file system until the job is given up."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """What a queue reports about a job."""

    waiting: str = ""  # why it has no nodes yet, as in "queued (Resources)"; empty if there is nothing to report
    nodes: str = ""  # its nodes, for people
    is_running: bool = False  # its nodes are allocated
    end: str = ""  # its state if the queue has ended or lost it, as in "NODE_FAIL"; else empty
    cause: str = ""  # what ended it, if that was the cluster and not the job, as in "was canceled"; else empty


class Queue(Protocol):
    """Holds jobs until they get their nodes."""

    def status(self, name: str) -> JobStatus:
        """What is known about a job."""

    def cause_at_end(self, name: str) -> str:
        """What ended a job whose lead agent has ended; the queue may notice the end of the job a while later."""

    def cancel(self, name: str) -> None:
        """End a job, if it exists.

        Raises:
            EngineError: The queue does not answer.
        """


@dataclass(eq=False)
class Allocation:
    """A submitted job, shared by its agents. Times are on the monotonic clock, unless stated otherwise."""

    queue: Queue
    folder: Path
    number: str = ""  # the queue's name for the job, for people, as in "SLURM job 12"
    last_message: str = ""  # the state that was last reported
    should_start: bool = False  # the go file has yet to be written
    is_stopping: bool = False  # this process has requested the end of the job
    placed_at: float | None = None  # when its first node started, in seconds since the epoch; None while it is queued
    running_since: float | None = None  # when the queue first reported it running while no node had started
    gone_since: float | None = None  # when the queue first reported that it has ended or lost the job
    alive_at: float = -math.inf  # when a file of its lead node was last seen to change
    followers_ended_at: float = math.inf  # when all nodes but the lead node had ended
    owner_file: Path | None = None  # its modification time is the orchestrator's heartbeat
    _owner_beat_at: float = -math.inf
    calls: FileCalls = field(default_factory=FileCalls)  # makes all calls on its files
    unanswered_since: float | None = None  # the start of the call that has no answer yet; None without such a call
    on_placed: Callable[[], None] = field(default=lambda: None)

    def poll(self) -> Placement | None:
        """The job's state, if it has changed since the last call."""
        if self.placed_at is None and files.is_there(self.folder / "node-0" / files.PLACED):
            at, now = read_object(self.folder / "node-0" / files.PLACED).get("at"), clock.now()
            self.placed_at = at if isinstance(at, float) and 0.0 < at <= now else now  # the node has its own clock
            self.on_placed()
        self._write_go()
        self._touch_owner_file()
        return self._if_new(self._message(self._status))

    @property
    def _status(self) -> JobStatus:
        return self.queue.status(self.folder.name)

    def _touch_owner_file(self) -> None:
        now = time.monotonic()
        if self.owner_file is not None and now > self._owner_beat_at + OWNER_HEARTBEAT:
            self._owner_beat_at = now
            with suppress(OSError):
                os.utime(self.owner_file)

    def _message(self, status: JobStatus) -> str:
        if self.placed_at is None:
            return status.waiting
        if self.has_left_queue and not self.is_lost:
            return f"given up by the cluster ({status.end}), but its files still change"
        number = f" ({self.number})" if self.number else ""
        return f"placed on {status.nodes}{number}" if status.nodes and not status.end else ""

    def poll_silence(self) -> Placement | None:
        """How long the shared file system has not answered, if that is worth a new message."""
        minutes = whole_minutes(self.unanswered_for)
        return self._if_new(f"{_NO_ANSWER} for {minutes} min" if self.unanswered_for > SILENT else "")

    def _if_new(self, message: str) -> Placement | None:
        if not message or message == self.last_message:
            return None
        self.last_message = message
        return Placement(message, is_placed=self.placed_at is not None)

    @property
    def unanswered_for(self) -> float:
        """Seconds since the start of the call on the job's files that has no answer yet; 0 without such a call."""
        return 0.0 if self.unanswered_since is None else time.monotonic() - self.unanswered_since

    @property
    def is_unreachable(self) -> bool:
        """Whether the shared file system has not answered for too long."""
        return self.unanswered_for > _ANSWER_LIMIT

    def with_number(self, cause: str) -> str:
        """A cause with the queue's name for the job."""
        return f"{cause}; it was {self.number}" if self.number else cause

    def storage_failure(self, error: str) -> str:
        """The cause of an end that was due to the shared file system."""
        return self.with_number(f"could not write to {self.folder.parent} ({error})")

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its nodes, so that there are no files to read."""
        return self.placed_at is None and not (self.is_stopping or self.has_left_queue or self._status.is_running)

    @property
    def is_stuck(self) -> bool:
        """Whether the queue reports it as running, and its nodes have not started in time."""
        if self.placed_at is not None or not self._status.is_running:
            self.running_since = None
        elif self.running_since is None:
            self.running_since = time.monotonic()
        return self.running_since is not None and time.monotonic() > self.running_since + _START_LIMIT

    @property
    def has_left_queue(self) -> bool:
        """Whether the queue ended or lost it so long ago that its last files should be visible."""
        if not self._status.end:
            self.gone_since = None
        elif self.gone_since is None:
            self.gone_since = time.monotonic()
        return self.gone_since is not None and time.monotonic() > self.gone_since + _LATE_FILES

    @property
    def is_orphaned(self) -> bool:
        """Whether only its lead node is left, which should have ended with the others."""
        return time.monotonic() > self.followers_ended_at + _LATE_FILES

    @property
    def is_lost(self) -> bool:
        """Whether it has left the queue, is orphaned or stuck, and no file of its lead node has changed since."""
        is_overdue = self.has_left_queue or self.is_orphaned or self.is_stuck
        return is_overdue and time.monotonic() > self.alive_at + _LATE_FILES

    def go(self) -> None:
        """Let the agents run their tests; each :meth:`poll` retries this if the shared file system refuses it."""
        self.should_start = True
        self.calls.submit(self._write_go)

    def _write_go(self) -> None:
        if self.should_start:
            with suppress(OSError):
                (self.folder / files.GO).touch()
                self.should_start = False

    def request_stop(self) -> None:
        """Ask the supervisors to end their agents, without waiting for the shared file system."""
        self.is_stopping = True
        self.calls.submit((self.folder / files.STOP).touch)

    def cancel(self) -> None:
        """Cancel it in the queue; ignore a queue that does not answer."""
        self.is_stopping = True
        with suppress(EngineError):
            self.queue.cancel(self.folder.name)

    def cause(self, leader: AgentExit | None) -> str:
        """What ended it, if that was the cluster; else empty."""
        if leader is None:
            return self._cause_without_exit()
        if leader.storage_error:
            return self.storage_failure(leader.storage_error)
        if self.is_stopping or (not leader.signals and leader.status is not None):
            return ""
        # The queue's last answer may be older than the end of the lead agent.
        if cause := self.queue.cause_at_end(self.folder.name):
            return self.with_number(cause)
        signals = f"was terminated from outside ({', '.join(leader.signals)})"
        return self.with_number(signals if leader.signals else "has left no exit status of its agent")

    def _cause_without_exit(self) -> str:
        if self.unanswered_for > _LATE_FILES:
            return self.with_number(f"was given up: {_NO_ANSWER} for {self.unanswered_for:.0f} s")
        if self.is_stopping:
            return ""
        status = self._status
        if status.cause:
            return self.with_number(status.cause)
        if self.is_stuck:
            return self.with_number(f"got nodes that did not start within {_START_LIMIT / 60:.0f} min")
        return self._cause_of_absence(status) if self.has_left_queue else ""  # the other nodes' exits are more specific

    def _cause_of_absence(self, status: JobStatus) -> str:
        with suppress(OSError):
            if self.calls.call(lambda: files.is_gone(self.folder / "node-0"), _LATE_FILES):
                return self.with_number(f"lost its files: {self.folder} was emptied, or removed")
        return f"has left no exit status: {self.number or 'the job'} is {status.end}"


_NO_ANSWER: Final = "the shared file system has not answered"


def whole_minutes(seconds: float) -> int:
    """Whole minutes; from five on, rounded down to a multiple of five, so that the message rarely changes."""
    minutes = int(seconds // 60)
    return minutes if minutes < 5 else minutes // 5 * 5


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a node's file; empty if the file is incomplete."""
    try:
        content = json.loads(read(path))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
