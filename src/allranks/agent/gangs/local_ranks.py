"""The ranks of one node, as the gang sees them: their events, and how to act on them."""

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from allranks.agent import clock, evidence, linux
from allranks.agent.call_log import LastCall, read_calls, read_last_calls, read_phase, read_wait
from allranks.agent.channel import ChildStarted, Command, Debugging, Progress, RankPrinted, StepEnded
from allranks.agent.diagnose.child_stacks import PATIENCE, ChildHang, Surroundings, find_children, text_of, words_for
from allranks.agent.diagnose.flight_recorder import FlightRecorder
from allranks.agent.diagnose.stacks import STACKS_SIGNAL, StackFile, dump_stacks
from allranks.agent.gangs.rank_process import Echo, RankProcess
from allranks.agent.orphans import REAP_TIMEOUT, KilledOrphan, Mark, Orphans, kill_orphans
from allranks.agent.output import Output, OutputLog
from allranks.agent.rank_events import RankEvent, RankExit, RankHang, RankReport
from allranks.agent.stacks import Stacks

Disturber = Callable[[Mapping[int, int], str], contextlib.AbstractContextManager[None]]
"""Disturbs ranks, given by their numbers and processes, in the way that a text describes."""

CLOSED_TIMEOUT = 1.0
"""Seconds for a rank to die after the end of its pipe; if it still lives then, it has closed the pipe itself."""


Look = Callable[[], Sequence[RankEvent]]
"""Data of a descriptor in a selector: returns the new events once the descriptor is readable."""


_HELD = {
    "T": "it is stopped (SIGSTOP)",
    "t": "it is stopped by its tracer (ptrace)",
    "D": "the kernel holds it (state D)",
}
"""By state; any process is in the last one for a moment now and then."""


class Stop(StrEnum):
    """How ranks are stopped."""

    FREEZE = "freeze"  # STOP, until they get a signal: they, and all that they have started, are about to be killed
    TERM = "term"
    KILL_ALONE = "kill_alone"  # KILL, but not what they have started: that has to be found
    KILL = "kill"  # KILL, with the rest of their process groups


@dataclass(frozen=True, kw_only=True)
class Disturb:
    """End what disturbs the ranks from outside, and begin with this.

    Attributes:
        how: As the plug-ins' functions take it; empty for nothing.
    """

    how: str


Order = Command | Disturb
"""What ranks, or who disturbs them, are sent."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What the ranks of one node are doing.

    Attributes:
        hangs: Where the ranks are that were asked about, even if they do not respond.
        calls: The last calls of each rank in its process groups, the newest first.
    """

    hangs: Mapping[int, RankHang] = field(default_factory=dict)
    calls: Mapping[int, tuple[LastCall, ...]] = field(default_factory=dict)


_Found = TypeVar("_Found")
Answer = Callable[[], _Found]
"""Waits for the answer to a question that has been asked: all nodes are asked before one is waited for."""


class Ranks(Protocol):
    """The ranks of one gang on one node."""

    @property
    def ranks(self) -> Sequence[int]:
        """Their numbers."""

    @property
    def pids(self) -> Sequence[int]:
        """Their process ids, each in its own node's namespace."""

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Register the descriptors that signal their events, each with a :data:`Look` as data."""

    def send(self, order: Order) -> None:
        """Send an order to each."""

    def examine(self, ranks: Collection[int]) -> Answer[Examination]:
        """Find out what the ranks do, and of these ranks where they are."""

    def stop(self, ranks: Collection[int], how: Stop) -> None:
        """Stop these ranks; returns before they have ended."""

    def take_output(self, title: str) -> Answer[Mapping[int, Output]]:
        """Log what each rank has printed since the last call, under this title, and return it."""

    def close(self) -> Answer[Sequence[KilledOrphan]]:
        """Kill processes that outlived the ranks, which have ended, and close all descriptors."""


def stack_files(results: Path, numbers: Iterable[int]) -> dict[int, StackFile]:
    """Create the stack files of ranks before the fork; later ones would miss stacks that a rank writes at once."""
    files = {number: results / f"rank-{number}.stacks.txt" for number in numbers}
    for path in files.values():
        # Created by the supervisor, so that no umask of the suite's can lock out ranks of later gangs.
        evidence.append(path, b"", 1)
    return {number: StackFile(path) for number, path in files.items()}


class LocalRanks:
    """Ranks that are children of this process.

    Args:
        processes: The forked ranks.
        results: The folder of their files.
        orphans: Finds the processes that they leave behind.
        recorder: torch's flight recorder, if these ranks have one.
        stacks: Their :func:`stack_files`, created before the fork; None to create them now.
        echo: Gets each line that ranks of a driver's test print, passed on by the driver; None for no echo.
        mark: Which they bear; None for none.
        shared: The folder that they share, which goes with them; None for none.
        disturbers: The functions of plug-ins that disturb ranks (see :mod:`allranks.agent.job_plugins`).
    """

    def __init__(  # noqa: PLR0913 - all but three have defaults and are passed by name
        self,
        processes: Sequence[RankProcess],
        results: Path,
        orphans: Orphans,
        recorder: FlightRecorder | None = None,
        *,
        stacks: Mapping[int, StackFile] | None = None,
        echo: Echo | None = None,
        mark: Mark | None = None,
        shared: Path | None = None,
        disturbers: Sequence[Disturber] = (),
    ) -> None:
        self._disturbers = disturbers
        self._shared = shared
        self._mark = mark
        self._recorder = recorder
        self._echo = echo
        self._processes = {process.number: process for process in processes}
        self._results = results
        self._orphans = orphans
        self._killed_for_memory = linux.killed_for_memory()
        self._logs = {number: OutputLog(results / f"rank-{number}.log") for number in self._processes}
        self._stacks = stack_files(results, self._processes) if stacks is None else stacks
        self._selector: selectors.BaseSelector | None = None
        self._stopped: set[int] = set()
        self._names: dict[int, dict[int, str]] = {}
        self._disturbance = contextlib.ExitStack()

    @property
    def ranks(self) -> Sequence[int]:
        """See :attr:`Ranks.ranks`."""
        return list(self._processes)

    @property
    def pids(self) -> Sequence[int]:
        """See :attr:`Ranks.pids`."""
        return [process.pid for process in self._processes.values()]

    def watch(self, selector: selectors.BaseSelector) -> None:
        """See :meth:`Ranks.watch`."""
        self._selector = selector
        for rank in self._processes.values():
            for descriptor, look in self._looks(rank).items():
                selector.register(descriptor, selectors.EVENT_READ, look)

    def _looks(self, rank: RankProcess) -> dict[int, Look]:
        return {
            rank.link.descriptor: lambda: self._look_at_reports(rank),
            rank.pidfd: lambda: self._look_at_end(rank),
            rank.stdout.descriptor: lambda: self._look_at_output(rank),
            rank.stderr.descriptor: lambda: self._look_at_output(rank),
        }

    def _look_at_reports(self, rank: RankProcess) -> Sequence[RankEvent]:
        if rank.link.is_sending:
            rank.link.flush()
            self._watch_for_room(rank)
        events = self._reports(rank)
        return [*events, *self._look_at_end(rank)] if rank.link.at_end else events

    def _reports(self, rank: RankProcess) -> list[RankEvent]:
        events: list[RankEvent] = []
        for message in rank.link.read():
            match message:
                case ChildStarted(pid=pid, name=name):
                    self._names.setdefault(rank.number, {})[pid] = name
                case RankPrinted(rank=number, line=line):
                    if self._echo is not None:
                        self._echo(number, line)
                case _:
                    events.append(self._event(rank, message))
        return events

    def _event(self, rank: RankProcess, message: Progress | Debugging) -> RankReport:
        strangers = rank.link.take_strangers()
        calls = read_calls(rank.board) if isinstance(message, StepEnded) else None
        return RankReport(rank=rank.number, message=message, at=clock.now(), has_strangers=strangers, calls=calls)

    def _look_at_output(self, rank: RankProcess) -> Sequence[RankEvent]:
        for stream in (rank.stdout, rank.stderr):
            stream.drain()
            if stream.at_end:
                self._forget(stream.descriptor)
        return ()

    def _look_at_end(self, rank: RankProcess) -> Sequence[RankEvent]:
        """The last reports, which still count, and the exit; a rank that closed its connection counts as ended."""
        if rank.exit_status is not None:
            return ()
        events = self._reports(rank)
        cut_off = _cut_off(rank)
        while more := self._reports(rank):
            events += more
        for descriptor in (rank.pidfd, rank.link.descriptor):
            self._forget(descriptor)
        return [*events, self._exit_of(rank, cut_off)]

    def _exit_of(self, rank: RankProcess, cut_off: str) -> RankExit:
        if rank.pid in self._stopped:
            # It ended on TERM; once it is reaped, its frozen descendants would have to be found one by one.
            rank.kill_group()
        status = rank.reap()
        # On a busy host, a rank that ends closes its connection seconds before it has ended.
        was_killed = status == -signal.SIGKILL or rank.link.is_garbled
        return RankExit(
            rank=rank.number,
            status=status,
            at=clock.now(),
            cut_off=cut_off if was_killed else "",
            lost="" if status is not None else "its tracer took its exit status",
            for_want_of_memory=linux.is_memory_kill(status, self._killed_for_memory),
            stacks=Stacks(self._stacks[rank.number].added()),
            output=rank.glance(),
            waits_for=read_wait(rank.board),
            calls=read_calls(rank.board),
        )

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError):
            if self._selector is not None:
                self._selector.unregister(descriptor)

    def send(self, order: Order) -> None:
        """See :meth:`Ranks.send`."""
        if isinstance(order, Disturb):
            self._disturb(order.how)
            return
        for rank in self._processes.values():
            if rank.exit_status is None:
                rank.link.send(order)
                if rank.link.is_sending:
                    self._watch_for_room(rank)

    def _watch_for_room(self, rank: RankProcess) -> None:
        """Have the selector report room for the rest of a command, as long as there is a rest."""
        if self._selector is not None:
            key = self._selector.get_key(rank.link.descriptor)
            self._selector.modify(key.fd, rank.link.events, key.data)

    def _disturb(self, how: str) -> None:
        self._disturbance.close()
        pids = {number: rank.pid for number, rank in self._processes.items() if rank.exit_status is None}
        for disturbing in self._disturbers if how else ():
            self._disturbance.enter_context(disturbing(pids, how))

    def stop(self, ranks: Collection[int], how: Stop) -> None:
        """See :meth:`Ranks.stop`."""
        for rank in map(self._processes.__getitem__, ranks):
            if how in (Stop.FREEZE, Stop.KILL):
                self._stopped.add(rank.pid)
            match how:
                case Stop.FREEZE:
                    rank.freeze()
                case Stop.TERM:
                    rank.signal(signal.SIGTERM)
                case Stop.KILL_ALONE:
                    rank.signal(signal.SIGKILL)
                case Stop.KILL:
                    rank.kill_group()

    def examine(self, ranks: Collection[int]) -> Answer[Examination]:
        """See :meth:`Ranks.examine`."""
        return lambda: self._examine(ranks)

    def _examine(self, ranks: Collection[int]) -> Examination:
        # First, as a rank may go on for a moment once it has written its stacks.
        calls = {number: tuple(read_last_calls(rank.board)) for number, rank in self._processes.items()}
        return Examination(hangs=self._find(ranks), calls=calls)

    def _find(self, ranks: Collection[int]) -> Mapping[int, RankHang]:
        # The process id of a reaped rank may belong to another process by now.
        pids = {rank: self._processes[rank].pid for rank in ranks if self._processes[rank].exit_status is None}
        before = {rank: self._processes[rank].state_before or linux.state_of(pid) for rank, pid in pids.items()}
        # A rank may go on to the end of its test as soon as it has written its stacks.
        phases = {rank: read_phase(self._processes[rank].board) for rank in ranks}
        waits = {rank: read_wait(self._processes[rank].board) for rank in ranks}
        stopped = {rank for rank, state in before.items() if state in ("T", "t")}
        # A rank takes up to a second to write its recording: it is asked first, and waited for last.
        recordings = self._recorder.request(pids) if self._recorder else []
        for rank in set(pids) - stopped:
            self._processes[rank].signal(STACKS_SIGNAL)
        stacks = dump_stacks(pids, stopped, {rank: self._stacks[rank] for rank in pids})
        if self._recorder:
            self._recorder.wait(recordings)
        held = {rank: _HELD.get(before[rank], "") for rank, pid in pids.items() if linux.state_of(pid) == before[rank]}
        # Only ranks that are about to be killed are frozen, and their children may end by being asked.
        self.stop([rank for rank, pid in pids.items() if pid in self._stopped], Stop.FREEZE)
        deadline = clock.monotonic() + PATIENCE
        children = {rank: self._children_of(rank, deadline) for rank, pid in pids.items() if pid in self._stopped}
        return {
            rank: RankHang(
                stacks=stacks.get(rank, Stacks()),
                held=held.get(rank, ""),
                phase=phases[rank],
                waits_for=waits[rank],
                children=words_for(children.get(rank, ())),
                child_stacks=text_of(children.get(rank, ())),
            )
            for rank in ranks
        }

    def _children_of(self, number: int, deadline: float) -> Sequence[ChildHang]:
        rank, file = self._processes[number], self._stacks[number]
        around = Surroundings(
            number=number,
            names=self._names.get(number, {}),
            stacks=file,
            printed=rank.stderr.glance,
            pipes=frozenset(os.fstat(each.descriptor).st_ino for each in (rank.stdout, rank.stderr)),
        )
        children = find_children(rank.pid, around, deadline)
        file.append(text_of(children))
        # Those that lead a session of their own, as torchrun's do, are no orphans of the rank: it is killed.
        self._stopped.update(child.pid for child in children)
        return children

    def take_output(self, title: str) -> Answer[Mapping[int, Output]]:
        """See :meth:`Ranks.take_output`."""
        return lambda: self._take_output(title)

    def _take_output(self, title: str) -> Mapping[int, Output]:
        outputs = {number: rank.take_output() for number, rank in self._processes.items()}
        for number, output in outputs.items():
            self._logs[number].add(title, output)
        return outputs

    def close(self) -> Answer[Sequence[KilledOrphan]]:
        """See :meth:`Ranks.close`."""
        return self._close

    def _close(self) -> Sequence[KilledOrphan]:
        self._disturbance.close()
        ranks = {each: number for number, rank in self._processes.items() for each in rank.ids}
        stopped = {each for rank in self._processes.values() if rank.pid in self._stopped for each in rank.ids}
        left = kill_orphans(self._orphans, ranks, stopped | self._stopped, self._mark)
        for rank in self._processes.values():
            rank.close()
        if self._shared is not None:
            evidence.remove_tree(self._shared)
        return left


def _cut_off(rank: RankProcess) -> str:
    """Wait for the end of a rank that cannot report any more; if it lives on, kill it and return the reason."""
    is_garbled = rank.link.is_garbled
    if not is_garbled and linux.is_readable(rank.pidfd, CLOSED_TIMEOUT):
        return ""
    # It alone: it may only be slow to end, and what it leaves behind has to be found.
    rank.signal(signal.SIGKILL)
    linux.is_readable(rank.pidfd, REAP_TIMEOUT)
    return "wrote into its connection to the supervisor" if is_garbled else "closed its connection to the supervisor"
