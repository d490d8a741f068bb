"""The ranks of one node as whoever leads them sees them: what happens to them, and what can be done to them."""

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from allranks.harness import kernel
from allranks.harness.channel import End, Report, Run, send_command
from allranks.harness.events import Event, rank_events, read_events, write_event
from allranks.harness.gangs.output import Output, OutputLog
from allranks.harness.gangs.rank_process import RankProcess
from allranks.harness.stacks.flight_recorder import FlightRecorder
from allranks.harness.stacks.stacks import StackFile, dump_stacks

CLOSED_PATIENCE = 1.0
"""Seconds in which a rank whose pipe has ended must be dead; longer means that it closed its pipe and lives."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """A rank has reported.

    Attributes:
        at: Seconds since the epoch, on the clock of the leading agent.
    """

    rank: int
    report: Report
    at: float


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A rank's process has ended.

    Attributes:
        status: Exit code, negative for a signal; None where nobody knows.
        at: Seconds since the epoch, on the clock of the leading agent.
        cut_off: Why it was killed while it lived on, in words: what it had done to its pipe; empty where it was not.
        for_want_of_memory: The kernel killed it when memory ran out.
        stacks: What a fatal signal left in its stack file.
        output: What it printed last.
        lost: Why nobody knows its status; empty where somebody does.
    """

    rank: int
    status: int | None
    at: float
    cut_off: str = ""
    for_want_of_memory: bool = False
    stacks: str = ""
    output: Output = field(default_factory=Output)
    lost: str = ""


Happening = Said | Gone
Look = Callable[[], Sequence[Happening]]
"""Registered with a selector as the data of a descriptor: what has happened, when that is readable."""


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """Where a rank is that has not ended its step.

    Attributes:
        stacks: Its stacks; empty where it gives none.
        is_stopped: It is stopped by a signal (SIGSTOP), and could not do anything.
        phase: The phase of the test that it is in, in words; empty where it is in none.
    """

    stacks: str = ""
    is_stopped: bool = False
    phase: str = ""


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """A process that outlived the rank that had started it, and was killed.

    Attributes:
        rank: Whose it was; None where that cannot be told.
        command: Its command line.
    """

    rank: int | None
    pid: int
    command: str


class Crew(Protocol):
    """The ranks of one gang on one node."""

    @property
    def ranks(self) -> Sequence[int]:
        """Their numbers."""

    @property
    def pids(self) -> Sequence[int]:
        """Their process ids, each in its own node's name space."""

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Register what tells of them, with a :data:`Look` as data."""

    def send(self, command: Run | End) -> None:
        """Send a command to each."""

    def signal(self, ranks: Collection[int], number: int) -> None:
        """Send a signal to these ranks alone."""

    def kill(self, ranks: Collection[int]) -> None:
        """KILL these ranks with all that they started and that stayed in their process groups."""

    def find(self, ranks: Collection[int]) -> Mapping[int, Stuck]:
        """Where these ranks are, whatever they do."""

    def record(self, rank: int, event: str, fields: Event) -> None:
        """Append an event to a rank's own file."""

    def put_output_away(self, title: str, keep: Collection[int]) -> Mapping[int, Output]:
        """Log what each rank has printed since the last call, and make it an event of the ranks in `keep`.

        Args:
            title: The node id of the test in which it was printed.
            keep: Ranks whose output belongs into the report.
        """

    def close(self) -> Sequence[LeftBehind]:
        """Kill what the ranks, which have ended, left behind, and close all descriptors."""


def stack_files(results: Path, numbers: Iterable[int]) -> dict[int, StackFile]:
    """The stack files of ranks that are about to be forked; made later, they would miss what one writes at once."""
    return {number: StackFile(results / f"rank-{number}.stacks.txt") for number in numbers}


class LocalCrew:
    """Ranks that this process has forked.

    Args:
        processes: The forked ranks.
        results: Where their files are.
        known: Children of this process that are none of the crew's.
        recorder: torch's flight recorder, where these ranks have one.
        stacks: Their :func:`stack_files`, made before the fork; None to make them now.
    """

    def __init__(
        self,
        processes: Sequence[RankProcess],
        results: Path,
        known: frozenset[int],
        recorder: FlightRecorder | None = None,
        *,
        stacks: Mapping[int, StackFile] | None = None,
    ) -> None:
        self._recorder = recorder
        self._processes = {process.number: process for process in processes}
        self._results = results
        self._known = known
        self._killed_for_memory = kernel.killed_for_memory()
        self._logs = {number: OutputLog(results / f"rank-{number}.log") for number in self._processes}
        self._stacks = stack_files(results, self._processes) if stacks is None else stacks
        self._selector: selectors.BaseSelector | None = None

    @property
    def ranks(self) -> Sequence[int]:
        """See :attr:`Crew.ranks`."""
        return list(self._processes)

    @property
    def pids(self) -> Sequence[int]:
        """See :attr:`Crew.pids`."""
        return [process.pid for process in self._processes.values()]

    def watch(self, selector: selectors.BaseSelector) -> None:
        """See :meth:`Crew.watch`."""
        self._selector = selector
        for rank in self._processes.values():
            for descriptor, look in self._looks(rank).items():
                selector.register(descriptor, selectors.EVENT_READ, look)

    def _looks(self, rank: RankProcess) -> dict[int, Look]:
        return {
            rank.reports.descriptor: lambda: self._look_at_reports(rank),
            rank.pidfd: lambda: self._look_at_end(rank),
            rank.stdout.descriptor: lambda: self._look_at_output(rank),
            rank.stderr.descriptor: lambda: self._look_at_output(rank),
        }

    def _look_at_reports(self, rank: RankProcess) -> Sequence[Happening]:
        said = self._said(rank)
        return [*said, *self._look_at_end(rank)] if rank.reports.at_end else said

    def _said(self, rank: RankProcess) -> list[Happening]:
        return [Said(rank=rank.number, report=report, at=time.time()) for report in rank.reports.read()]

    def _look_at_output(self, rank: RankProcess) -> Sequence[Happening]:
        for stream in (rank.stdout, rank.stderr):
            stream.drain()
            if stream.at_end:
                self._forget(stream.descriptor)
        return ()

    def _look_at_end(self, rank: RankProcess) -> Sequence[Happening]:
        """A report that was sent before the end counts; a rank that closed its pipe will never report again."""
        if rank.exit_status is not None:
            return ()
        said = self._said(rank)
        cut_off = _cut_off(rank)
        for descriptor in (rank.pidfd, rank.reports.descriptor):
            self._forget(descriptor)
        return [*said, self._gone(rank, cut_off)]

    def _gone(self, rank: RankProcess, cut_off: str) -> Gone:
        status = rank.reap()
        return Gone(
            rank=rank.number,
            status=status,
            at=time.time(),
            cut_off=cut_off,
            for_want_of_memory=status == -signal.SIGKILL and kernel.killed_for_memory() > self._killed_for_memory,
            stacks=self._stacks[rank.number].added(),
            output=rank.glance(),
        )

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError):
            if self._selector is not None:
                self._selector.unregister(descriptor)

    def send(self, command: Run | End) -> None:
        """See :meth:`Crew.send`."""
        for rank in self._processes.values():
            send_command(rank.commands, command)

    def signal(self, ranks: Collection[int], number: int) -> None:
        """See :meth:`Crew.signal`."""
        for rank in ranks:
            self._processes[rank].signal(number)

    def kill(self, ranks: Collection[int]) -> None:
        """See :meth:`Crew.kill`."""
        for rank in ranks:
            self._processes[rank].kill_group()

    def find(self, ranks: Collection[int]) -> Mapping[int, Stuck]:
        """See :meth:`Crew.find`."""
        # The process id of a rank that has been reaped may be anyone's.
        pids = {rank: self._processes[rank].pid for rank in ranks if self._processes[rank].exit_status is None}
        stopped = {rank for rank, pid in pids.items() if kernel.is_stopped(pid)}
        # A rank takes up to a second to write its recording: it is asked first, and waited for last.
        recordings = self._recorder.request(pids) if self._recorder else []
        stacks = dump_stacks(pids, stopped, {rank: self._stacks[rank] for rank in pids})
        if self._recorder:
            self._recorder.wait(recordings)
        return {
            rank: Stuck(
                stacks=stacks.get(rank, ""),
                is_stopped=rank in stopped,
                phase=_phase_under_way(read_events(rank_events(self._results, rank))),
            )
            for rank in ranks
        }

    def record(self, rank: int, event: str, fields: Event) -> None:
        """See :meth:`Crew.record`."""
        write_event(rank_events(self._results, rank), event, **fields)

    def put_output_away(self, title: str, keep: Collection[int]) -> Mapping[int, Output]:
        """See :meth:`Crew.put_output_away`."""
        outputs = {number: rank.take_output() for number, rank in self._processes.items()}
        for number, output in outputs.items():
            self._logs[number].add(title, output)
            if number in keep and (fields := output.fields()):
                self.record(number, "output", {"nodeid": title, **fields})
        return outputs

    def close(self) -> Sequence[LeftBehind]:
        """See :meth:`Crew.close`."""
        left = _kill_orphans(self._known, {rank.pid: number for number, rank in self._processes.items()})
        for rank in self._processes.values():
            rank.close()
        return left


def _cut_off(rank: RankProcess) -> str:
    """Wait for the end of a rank that can say nothing more; kill it where it lives on, and say why."""
    is_garbled = rank.reports.is_garbled
    if not is_garbled and kernel.is_readable(rank.pidfd, CLOSED_PATIENCE):
        return ""
    rank.kill_group()
    kernel.is_readable(rank.pidfd, None)
    return "wrote into its connection to the agent" if is_garbled else "closed its connection to the agent"


_NEXT_PHASE = {"": "set-up", "setup": "call", "call": "tear-down"}


def _phase_under_way(events: Sequence[Event]) -> str:
    """The phase that a rank with these events has begun and not ended, in words."""
    telling = ("test_started", "phase", "test_finished", "rank_started")
    last = next((event for event in reversed(events) if event["event"] in telling), {"event": ""})
    if last["event"] not in ("test_started", "phase"):
        return ""
    if last.get("when") == "setup" and last.get("outcome") != "passed":
        return "tear-down"
    return _NEXT_PHASE.get(str(last.get("when", "")), "")


def _kill_orphans(known: frozenset[int], ranks: Mapping[int, int]) -> list[LeftBehind]:
    """Kill and reap what ranks left behind: as subreaper, this process is the parent of it now."""
    left: list[LeftBehind] = []
    while orphans := kernel.children() - known:
        for pid in orphans:
            left += _left_behind(pid, ranks)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return left


def _left_behind(pid: int, ranks: Mapping[int, int]) -> Iterable[LeftBehind]:
    """What an orphan is, unless it is dead already; each rank leads a session, and a child stays in it."""
    process = kernel.describe(pid)
    if process is not None:
        yield LeftBehind(rank=ranks.get(process.session), pid=pid, command=process.command)
