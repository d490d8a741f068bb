"""The ranks of one node, as the gang sees them: how they are forked, their events, and how to act on them."""

import contextlib
import os
import selectors
import signal
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from json import dumps, loads  # now, as a suite may patch them
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

from allranks.agent import call_log, child_observer, clock, evidence, linux
from allranks.agent.call_log import LastCall, read_calls, read_last_calls, read_phase, read_wait
from allranks.agent.channel import (
    Command,
    Debugging,
    Link,
    Progress,
    RankEvent,
    RankExit,
    RankHang,
    RankPrinted,
    RankReport,
    StepEnded,
    link_pair,
)
from allranks.agent.child_processes import children_folder, labels_of_children, primary, read_children
from allranks.agent.diagnose.flight_recorder import FlightRecorder
from allranks.agent.diagnose.stacks import (
    PATIENCE,
    STACKS_SIGNAL,
    ChildHang,
    StackFile,
    Surroundings,
    dump_stacks,
    find_children,
    text_of,
    words_for,
)
from allranks.agent.orphans import REAP_TIMEOUT, KilledOrphan, Mark, Orphans, kill_group, kill_orphans
from allranks.agent.output import Output, OutputLog, OutputStream
from allranks.agent.stacks import Stacks

BeRank = Callable[[int, int, int], NoReturn]
"""The work of a fork: called with its rank, and the descriptors of its connection and of its call log."""

UNKNOWN_STATUS = -1000
"""In place of an exit status that another process took."""

Echo = Callable[[int, str], None]
"""Gets each line that a rank prints, with the rank."""


@dataclass(kw_only=True, eq=False)
class RankProcess:
    """The supervisor's side of one rank."""

    number: int
    pid: int
    # Process id of the former leader of its session and process group, which has ended: the rank leads neither, so that
    # it may leave both.
    session: int
    pidfd: int  # readable when the process has ended (pidfd_open(2))
    link: Link
    stdout: OutputStream
    stderr: OutputStream
    board: int  # descriptor of its call log
    exit_status: int | None = None  # ``os.waitstatus_to_exitcode`` of its end; None while it lives
    state_before: str = ""  # the state of the process before it was frozen; empty while it is not

    def signal(self, number: int) -> None:
        """Send a signal to the rank alone; a frozen one goes on, and first takes it.

        It goes to the main thread, which runs Python's handlers: just after a stop the kernel would give it to another
        one, and the main thread would sleep on.
        """
        if self.exit_status is not None:
            return
        if linux.is_readable(self.pidfd, 0.0) or not linux.signal_thread(self.pid, number):
            linux.signal_pidfd(self.pidfd, number)
        if self.state_before not in ("", "T", "t"):
            linux.signal_pidfd(self.pidfd, signal.SIGCONT)
        self.state_before = ""

    def freeze(self) -> None:
        """STOP it and the rest of its process group until it gets a signal; its children are not released by that.

        No number of busy processes, and none that it still starts, then delays what ends the rank.
        """
        if self.exit_status is None and not self.state_before:
            state = linux.state_of(self.pid)
            if linux.signal_pidfd(self.pidfd, signal.SIGSTOP):
                self.state_before = state
            for group in self.ids:
                linux.signal_group(group, signal.SIGSTOP)

    def kill_group(self) -> None:
        """KILL the rank and the rest of its process group, except for processes that clean up.

        Only before the rank is reaped: until then no other process can get its process id.
        """
        if self.exit_status is not None:
            return
        for group in self.ids:
            kill_group(group)
        self.signal(signal.SIGKILL)  # it may have joined the process group of another process

    @property
    def ids(self) -> tuple[int, int]:
        """The process groups and sessions of the rank and its children: the first one, and one that it may lead."""
        return self.session, self.pid

    def reap(self) -> int | None:
        """Take the exit status of a rank whose pidfd is readable; None if another process took it."""
        status = linux.reap(self.pid, REAP_TIMEOUT)
        self.exit_status = UNKNOWN_STATUS if status is None else status
        return status

    def end(self) -> None:
        """Kill it, reap it and close its descriptors."""
        self.kill_group()
        if self.exit_status is None:
            self.reap()
        self.close()

    def glance(self) -> Output:
        """The rank's output since the last call of :meth:`take_output`, which will return it again."""
        return Output(stdout=self.stdout.glance(), stderr=self.stderr.glance())

    def take_output(self) -> Output:
        """The rank's output since the last call."""
        return Output(stdout=self.stdout.take(), stderr=self.stderr.take())

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The supervisor's descriptors of this rank."""
        return self.pidfd, self.link.descriptor, self.stdout.descriptor, self.stderr.descriptor, self.board

    def close(self) -> None:
        """Close the supervisor's descriptors of this rank."""
        self.link.close()
        for descriptor in (self.pidfd, self.stdout.descriptor, self.stderr.descriptor, self.board):
            os.close(descriptor)


@dataclass(frozen=True, eq=False)
class ConnectionEnds:
    """Both ends of all connections of a rank that is about to be forked."""

    number: int
    link: Link
    stdout: OutputStream
    stderr: OutputStream
    board: int
    # The rank's descriptors: of its connection, its standard output, its standard error and its board.
    theirs: tuple[int, ...]

    @property
    def own(self) -> tuple[int, ...]:
        """The supervisor's descriptors."""
        return self.link.descriptor, self.stdout.descriptor, self.stderr.descriptor, self.board

    def process(self, pid: int, pidfd: int) -> RankProcess:
        """The rank that has the other ends now, which are closed here."""
        self.link.pid = pid
        self.hand_over()
        return RankProcess(
            number=self.number,
            pid=pid,
            session=linux.session_of(pid) or pid,
            pidfd=pidfd,
            link=self.link,
            stdout=self.stdout,
            stderr=self.stderr,
            board=self.board,
        )

    def hand_over(self) -> None:
        """Close this process's copies of the rank's ends."""
        for descriptor in self.theirs:
            with suppress(OSError):
                os.close(descriptor)


def open_ends(number: int, echo: Echo | None, undo: ExitStack) -> ConnectionEnds:
    """Open the connections of one rank; `undo` closes them."""
    link, theirs = link_pair()
    undo.callback(link.close)
    undo.callback(os.close, theirs)
    stdout_in, stdout_out = _pipe(undo)
    stderr_in, stderr_out = _pipe(undo)
    boards = call_log.open_log()
    for descriptor in boards:
        undo.callback(os.close, descriptor)
    echo_line = None if echo is None else lambda line: echo(number, line)
    return ConnectionEnds(
        number=number,
        link=link,
        stdout=OutputStream(stdout_in, echo_line),
        stderr=OutputStream(stderr_in, echo_line),
        board=boards[0],
        theirs=(theirs, stdout_out, stderr_out, boards[1]),
    )


def fork_ranks(numbers: Iterable[int], be_rank: BeRank, echo: Echo | None = None) -> list[RankProcess]:
    """Fork ranks off this process; an OSError leaves none of them."""
    ranks: list[RankProcess] = []
    try:
        for number in numbers:
            with linux.adopting_orphans(), ExitStack() as undo:
                ends = open_ends(number, echo, undo)
                inherited = [*ends.own, *(descriptor for rank in ranks for descriptor in rank.descriptors)]
                pid = fork_rank(number, ends.theirs, be_rank, inherited)
                undo.callback(_end, pid)
                ranks.append(ends.process(pid, os.pidfd_open(pid)))
                undo.pop_all()
    except BaseException:
        for rank in ranks:
            rank.end()
        raise
    return ranks


def fork_rank(number: int, ends: tuple[int, ...], be_rank: BeRank, others: Iterable[int]) -> int:
    """Fork one rank, which must not keep the descriptors of others; return its process id.

    An intermediate process creates a session, forks the rank and ends: the rank leads neither its session nor its
    process group, as a program that a script starts, and a test may create new ones. The process that adopts orphans
    becomes its parent.
    """
    reading, writing = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if between == 0:
        connection, *outputs, board = ends
        _be_between(
            writing, lambda: _be_fork([*others, reading, writing], outputs, lambda: be_rank(number, connection, board))
        )
    os.close(writing)
    answer = _answer(between, reading)
    told = loads(answer) if answer else "the process that forks a rank ended"
    if isinstance(told, str):
        raise OSError(told)
    child_observer.ignore(int(told))
    return int(told)


def _be_between(writing: int, be_fork: Callable[[], NoReturn]) -> NoReturn:
    """Create a session, fork the rank, write its process id, and exit."""
    try:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            be_fork()
        linux.write_all(writing, dumps(pid).encode())
    except OSError as error:
        linux.write_all(writing, dumps(str(error)).encode())
    finally:
        os._exit(0)


def _answer(between: int, reading: int) -> bytes:
    """Wait for the intermediate process to end and read its answer; a hanging rank may still hold the pipe open."""
    pidfd = os.pidfd_open(between)
    try:
        linux.is_readable(pidfd, None)
        os.set_blocking(reading, False)
        with suppress(BlockingIOError):
            return os.read(reading, 1 << 20)
    finally:
        os.close(pidfd)
        os.close(reading)
        linux.reap(between, 0.0)
    return b""


def _pipe(undo: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for descriptor in ends:
        undo.callback(os.close, descriptor)
    return ends


def _end(pid: int) -> None:
    linux.signal_process(pid, signal.SIGKILL)
    linux.reap(pid, REAP_TIMEOUT)


def _be_fork(others: Iterable[int], outputs: Iterable[int], work: Callable[[], NoReturn]) -> NoReturn:
    """Continue as the fork and never return: an exception must not make it a second copy of its parent."""
    try:
        for descriptor in others:
            os.close(descriptor)
        for target, descriptor in enumerate(outputs, start=1):
            os.dup2(descriptor, target)
            os.close(descriptor)
        work()
    except BaseException:  # noqa: BLE001 - the last frame of this process has no caller to raise to
        traceback.print_exc()
    finally:
        os._exit(1)


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
    """End what disturbs the ranks from outside, and begin with this."""

    how: str  # as the plug-ins' functions take it; empty for nothing


Order = Command | Disturb
"""What ranks, or who disturbs them, are sent."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What the ranks of one node are doing."""

    # Where the ranks are that were asked about, even if they do not respond.
    hangs: Mapping[int, RankHang] = field(default_factory=dict)
    # The last calls of each rank in its process groups, the newest first.
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
        code: The folder of the suite, to which paths are relative.
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
        code: Path | None = None,
    ) -> None:
        self._code = code
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
        self._disturbance = contextlib.ExitStack()

    @property
    def ranks(self) -> Sequence[int]:
        return list(self._processes)

    @property
    def pids(self) -> Sequence[int]:
        return [process.pid for process in self._processes.values()]

    def watch(self, selector: selectors.BaseSelector) -> None:
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
                case RankPrinted(rank=number, line=line):
                    if self._echo is not None:
                        self._echo(number, line)
                case _:
                    events.append(self._event(rank, message))
        return events

    def _event(self, rank: RankProcess, message: Progress | Debugging) -> RankReport:
        return RankReport(
            rank=rank.number,
            message=message,
            at=clock.now(),
            has_foreign_data=rank.link.take_foreign_data(),
            calls=read_calls(rank.board) if isinstance(message, StepEnded) else None,
        )

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
        kill_reason = _kill_reason(rank)
        while more := self._reports(rank):
            events += more
        for descriptor in (rank.pidfd, rank.link.descriptor):
            self._forget(descriptor)
        return [*events, self._exit_of(rank, kill_reason)]

    def _exit_of(self, rank: RankProcess, kill_reason: str) -> RankExit:
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
            kill_reason=kill_reason if was_killed else "",
            lost="" if status is not None else "its tracer took its exit status",
            by_memory_killer=linux.is_memory_kill(status, self._killed_for_memory),
            stacks=Stacks(self._stacks[rank.number].added(), self._code),
            output=rank.glance(),
            waits_for=read_wait(rank.board),
            calls=read_calls(rank.board),
        )

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError):
            if self._selector is not None:
                self._selector.unregister(descriptor)

    def send(self, order: Order) -> None:
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
        stacks = dump_stacks(pids, stopped, {rank: self._stacks[rank] for rank in pids}, self._code)
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
                children=self._failed_child_of(rank) + words_for(children.get(rank, ())),
                child_stacks=text_of(children.get(rank, ())),
            )
            for rank in ranks
        }

    def _failed_child_of(self, number: int) -> str:
        """In words, the process that failed first of those that a rank's test has started; empty for none."""
        failed = None if self._shared is None else primary(read_children(children_folder(self._shared, number), number))
        return f"; {failed.message(self._code)} before" if failed else ""

    def _children_of(self, number: int, deadline: float) -> Sequence[ChildHang]:
        rank, file = self._processes[number], self._stacks[number]
        events = children_folder(self._shared, number) if self._shared else None
        around = Surroundings(
            number=number,
            names=labels_of_children(events, number) if events else {},
            stacks=file,
            printed=rank.stderr.glance,
            pipes=frozenset(os.fstat(each.descriptor).st_ino for each in (rank.stdout, rank.stderr)),
            code=self._code,
        )
        children = find_children(rank.pid, around, deadline)
        file.append(text_of(children))
        # Those that lead a session of their own, as torchrun's do, are no orphans of the rank: it is killed.
        self._stopped.update(child.pid for child in children)
        return children

    def take_output(self, title: str) -> Answer[Mapping[int, Output]]:
        return lambda: self._take_output(title)

    def _take_output(self, title: str) -> Mapping[int, Output]:
        outputs = {number: rank.take_output() for number, rank in self._processes.items()}
        for number, output in outputs.items():
            self._logs[number].add(title, output)
        return outputs

    def close(self) -> Answer[Sequence[KilledOrphan]]:
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


def _kill_reason(rank: RankProcess) -> str:
    """Wait for the end of a rank that cannot report any more; if it lives on, kill it and return the reason."""
    is_garbled = rank.link.is_garbled
    if not is_garbled and linux.is_readable(rank.pidfd, CLOSED_TIMEOUT):
        return ""
    # It alone: it may only be slow to end, and what it leaves behind has to be found.
    rank.signal(signal.SIGKILL)
    linux.is_readable(rank.pidfd, REAP_TIMEOUT)
    return "wrote into its connection to the supervisor" if is_garbled else "closed its connection to the supervisor"
