"""The ranks of one gang on one node: how they are forked, their events, and how to control them."""

import os
import selectors
import signal
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
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
    RunTest,
    StepEnded,
    link_pair,
)
from allranks.agent.child_processes import children_folder, labels_of_children, primary, read_children
from allranks.agent.diagnose.flight_recorder import FlightRecorder
from allranks.agent.diagnose.stacks import (
    CHILDREN_TIMEOUT,
    MAIN_STACK_SIGNAL,
    STACKS_SIGNAL,
    ChildHang,
    ParentRank,
    StackFile,
    child_stacks_text,
    describe_children,
    dump_stacks,
    inspect_children,
)
from allranks.agent.orphans import REAP_TIMEOUT, KilledOrphan, Mark, Orphans, kill_group, kill_orphans
from allranks.agent.output import Output, OutputLog, OutputStream
from allranks.agent.stacks import Stacks
from allranks.protocol.records import TestSlow

RankMain = Callable[[int, int, int], NoReturn]
"""The main function of a rank; its arguments are the rank, and the descriptors of its connection and its call log."""

UNKNOWN_STATUS = -1000
"""Stands for an exit status that another process took."""

Echo = Callable[[int, str], None]
"""Called with a rank and a line that it has printed."""


@dataclass(kw_only=True, eq=False)
class RankProcess:
    """The supervisor's side of one rank, from :func:`open_rank` on."""

    number: int
    link: Link
    stdout: OutputStream
    stderr: OutputStream
    call_log: int  # descriptor
    rank_ends: tuple[int, ...]  # until the fork, descriptors: connection, standard output, standard error, call log
    pid: int = 0
    # The session and process group that the rank was forked into. It leads neither, so a test may create new ones.
    session: int = 0
    pidfd: int = -1  # readable when the process has ended (pidfd_open(2))
    exit_status: int | None = None  # ``os.waitstatus_to_exitcode`` of its end; None while it lives
    state_before: str = ""  # the state of the process before it was frozen; empty while it is not

    def note_fork(self, pid: int, pidfd: int) -> None:
        """Note the process of the forked rank, which has its ends now, and close this process's copies of them."""
        self.pid = self.link.pid = pid
        self.pidfd = pidfd
        self.session = linux.session_of(pid) or pid
        for descriptor in self.rank_ends:
            with suppress(OSError):
                os.close(descriptor)

    def signal(self, number: int) -> None:
        """Send a signal to the rank alone; a frozen rank handles it and continues.

        The main thread gets it, because that one runs Python's handlers: just after a stop the kernel would choose
        another thread, and the main thread would sleep on.
        """
        if self.exit_status is not None:
            return
        if linux.is_readable(self.pidfd, 0.0) or not linux.signal_thread(self.pid, number):
            linux.signal_pidfd(self.pidfd, number)
        if self.state_before not in ("", "T", "t"):
            linux.signal_pidfd(self.pidfd, signal.SIGCONT)
        self.state_before = ""

    def freeze(self) -> None:
        """STOP the rank until it gets a signal, and the rest of its process group for good.

        Otherwise, busy or new processes of the rank could delay its end.
        """
        if self.exit_status is None and not self.state_before:
            state = linux.state_of(self.pid)
            if linux.signal_pidfd(self.pidfd, signal.SIGSTOP):
                self.state_before = state
            for group in self.ids:
                linux.signal_group(group, signal.SIGSTOP)

    def kill_group(self) -> None:
        """KILL the rank and the rest of its process group, except for resource trackers.

        Does nothing once the rank is reaped: another process may then have its process id.
        """
        if self.exit_status is not None:
            return
        for group in self.ids:
            kill_group(group)
        self.signal(signal.SIGKILL)  # it may have joined the process group of another process

    @property
    def ids(self) -> tuple[int, int]:
        """The process groups and sessions of the rank and its children: the original one, and one that it may lead."""
        return self.session, self.pid

    def reap(self) -> int | None:
        """Take the exit status of a rank whose pidfd is readable; None if another process took it."""
        status = linux.reap(self.pid, REAP_TIMEOUT)
        self.exit_status = UNKNOWN_STATUS if status is None else status
        return status

    def end(self) -> None:
        """Kill the rank, reap it and close its descriptors."""
        self.kill_group()
        if self.exit_status is None:
            self.reap()
        self.close()

    def peek_output(self) -> Output:
        """Return the output since the last :meth:`take_output`, without taking it."""
        return Output(stdout=self.stdout.peek(), stderr=self.stderr.peek())

    def take_output(self) -> Output:
        """Return the output since the last call."""
        return Output(stdout=self.stdout.take(), stderr=self.stderr.take())

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The supervisor's descriptors of this rank."""
        pidfd = (self.pidfd,) if self.pid else ()
        return *pidfd, self.link.descriptor, self.stdout.descriptor, self.stderr.descriptor, self.call_log

    def close(self) -> None:
        """Close the supervisor's descriptors of this rank."""
        self.link.close()
        for descriptor in (self.pidfd, self.stdout.descriptor, self.stderr.descriptor, self.call_log):
            os.close(descriptor)


def open_rank(number: int, echo: Echo | None, undo: ExitStack) -> RankProcess:
    """Open the connections of a rank that is about to be forked; `undo` closes them."""
    link, rank_end = link_pair()
    undo.callback(link.close)
    undo.callback(os.close, rank_end)
    stdout_in, stdout_out = _pipe(undo)
    stderr_in, stderr_out = _pipe(undo)
    logs = call_log.open_log()
    for descriptor in logs:
        undo.callback(os.close, descriptor)
    echo_line = None if echo is None else lambda line: echo(number, line)
    return RankProcess(
        number=number,
        link=link,
        stdout=OutputStream(stdout_in, echo_line),
        stderr=OutputStream(stderr_in, echo_line),
        call_log=logs[0],
        rank_ends=(rank_end, stdout_out, stderr_out, logs[1]),
    )


def _pipe(undo: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for descriptor in ends:
        undo.callback(os.close, descriptor)
    return ends


def fork_ranks(numbers: Iterable[int], rank_main: RankMain, echo: Echo | None = None) -> list[RankProcess]:
    """Fork ranks off this process; after an OSError none of them is left."""
    ranks: list[RankProcess] = []
    try:
        for number in numbers:
            with linux.adopting_orphans(), ExitStack() as undo:
                new = open_rank(number, echo, undo)
                inherited = [descriptor for rank in (*ranks, new) for descriptor in rank.descriptors]
                pid = fork_rank(number, new.rank_ends, rank_main, inherited)
                undo.callback(_kill, pid)
                new.note_fork(pid, os.pidfd_open(pid))
                ranks.append(new)
                undo.pop_all()
    except BaseException:
        for rank in ranks:
            rank.end()
        raise
    return ranks


def _kill(pid: int) -> None:
    linux.signal_process(pid, signal.SIGKILL)
    linux.reap(pid, REAP_TIMEOUT)


def fork_rank(number: int, ends: tuple[int, ...], rank_main: RankMain, others: Iterable[int]) -> int:
    """Fork one rank, which must close the descriptors of `others`; return its process id.

    An intermediate process creates a session, forks the rank and exits. The rank leads neither its session nor its
    process group, like a program that a script starts, so a test may create new ones. The process that adopts orphans
    becomes its parent.
    """
    reading, writing = os.pipe()
    try:
        intermediate = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if intermediate == 0:
        connection, *outputs, log = ends
        inherited = [*others, reading, writing]
        _run_intermediate(writing, lambda: _run_fork(inherited, outputs, lambda: rank_main(number, connection, log)))
    os.close(writing)
    answer = _read_answer(intermediate, reading)
    pid_or_error = loads(answer) if answer else "the process that forks a rank ended"
    if isinstance(pid_or_error, str):
        raise OSError(pid_or_error)
    child_observer.ignore(int(pid_or_error))
    return int(pid_or_error)


def _run_intermediate(writing: int, run_fork: Callable[[], NoReturn]) -> NoReturn:
    """Create a session, fork the rank, write its process id or an error, and exit."""
    try:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            run_fork()
        linux.write_all(writing, dumps(pid).encode())
    except OSError as error:
        linux.write_all(writing, dumps(str(error)).encode())
    finally:
        os._exit(0)


def _run_fork(others: Iterable[int], outputs: Iterable[int], work: Callable[[], NoReturn]) -> NoReturn:
    """Run the fork, and never return: an exception must not make it a second copy of its parent."""
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


def _read_answer(intermediate: int, reading: int) -> bytes:
    """Wait for the intermediate process to exit and read its answer; a hanging rank may still hold the pipe open."""
    pidfd = os.pidfd_open(intermediate)
    try:
        linux.is_readable(pidfd, None)
        os.set_blocking(reading, False)
        with suppress(BlockingIOError):
            return os.read(reading, 1 << 20)
    finally:
        os.close(pidfd)
        os.close(reading)
        linux.reap(intermediate, 0.0)
    return b""


Disturber = Callable[[Mapping[int, int], str], AbstractContextManager[None]]
"""Disturbs ranks, given the process id of each, in the way that a text describes."""

CLOSED_TIMEOUT = 1.0
"""Seconds for a rank to end after its connection closes; one that still runs closed it itself."""

ReadEvents = Callable[[], Sequence[RankEvent]]
"""The data of a descriptor in a selector: called when the descriptor is readable, returns the new events."""

_BLOCKED = {
    "T": "it is stopped (SIGSTOP)",
    "t": "it is stopped by its tracer (ptrace)",
    "D": "it is in the kernel (state D)",
}
"""By process state. Any process is in state D for a moment now and then."""


class Stop(StrEnum):
    """How ranks are stopped."""

    FREEZE = "freeze"  # STOP until they get a signal: they, and all that they have started, are about to be killed
    TERM = "term"
    KILL_ALONE = "kill_alone"  # KILL, but not the processes that they have started, which are to be reported
    KILL = "kill"  # KILL, with the rest of their process groups


@dataclass(frozen=True, kw_only=True)
class Disturb:
    """Stop disturbing the ranks from outside, and start in another way."""

    how: str  # passed to the plug-ins' functions; empty for no disturbance


GangCommand = Command | Disturb
"""A command for all ranks of a gang, or for the node that they run on."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What the ranks of one node are doing."""

    # Where the requested ranks are, even if they do not respond.
    hangs: Mapping[int, RankHang] = field(default_factory=dict)
    # The last calls of all ranks in their process groups, newest first.
    calls: Mapping[int, tuple[LastCall, ...]] = field(default_factory=dict)


_Result = TypeVar("_Result")
Pending = Callable[[], _Result]
"""Waits for the result of a request that has been sent: the gang sends to all nodes before it waits for one."""


class Ranks(Protocol):
    """The ranks of one gang on one node."""

    @property
    def ranks(self) -> Sequence[int]:
        """Their numbers."""

    @property
    def pids(self) -> Sequence[int]:
        """Their process ids, in their own node's namespace."""

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Register the descriptors that signal their events, each with a :data:`ReadEvents` as data."""

    def send(self, command: GangCommand) -> None:
        """Send a command to all of them."""

    def inspect(self, ranks: Collection[int], *, briefly: bool = False) -> Pending[Inspection]:
        """Find out where these ranks are, and the last calls of all.

        Args:
            ranks: Their numbers.
            briefly: Only from the main threads' Python frames and the call logs: the ranks may have to continue.
        """

    def stop(self, ranks: Collection[int], how: Stop) -> None:
        """Stop these ranks; returns before they have ended."""

    def take_output(self, title: str) -> Pending[Mapping[int, Output]]:
        """Log the output of each rank since the last call, under this title, and return it."""

    def close(self) -> Pending[Sequence[KilledOrphan]]:
        """Kill processes that outlived the ranks, which have ended, and close all descriptors."""


def stack_files(results: Path, numbers: Iterable[int]) -> dict[int, StackFile]:
    """Create the stack files of ranks; called before the fork, because a rank may write stacks at once."""
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
        recorder: torch's flight recorder, if they use it.
        stacks: Their :func:`stack_files` if these were created before the fork.
        echo: Called with each line that ranks of a multi-process test print.
        mark: The mark in their environment.
        shared: The folder that they share, which is removed with them.
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
        self._orphans = orphans
        self._killed_for_memory = linux.killed_for_memory()
        self._logs = {number: OutputLog(results / f"rank-{number}.log") for number in self._processes}
        self._stacks = stack_files(results, self._processes) if stacks is None else stacks
        self._selector: selectors.BaseSelector | None = None
        self._test_began = 0.0  # on the monotonic clock
        self._stopped: set[int] = set()  # process ids of ranks and session leaders that were stopped
        self._disturbance = ExitStack()

    @property
    def ranks(self) -> Sequence[int]:
        return list(self._processes)

    @property
    def pids(self) -> Sequence[int]:
        return [process.pid for process in self._processes.values()]

    def watch(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        for rank in self._processes.values():
            for descriptor, read_events in self._readers(rank).items():
                selector.register(descriptor, selectors.EVENT_READ, read_events)

    def _readers(self, rank: RankProcess) -> dict[int, ReadEvents]:
        return {
            rank.link.descriptor: lambda: self._read_link(rank),
            rank.pidfd: lambda: self._read_exit(rank),
            rank.stdout.descriptor: lambda: self._read_output(rank),
            rank.stderr.descriptor: lambda: self._read_output(rank),
        }

    def _read_link(self, rank: RankProcess) -> Sequence[RankEvent]:
        if rank.link.is_sending:
            rank.link.flush()
            self._update_events(rank)
        events = self._read_reports(rank)
        return [*events, *self._read_exit(rank)] if rank.link.at_end else events

    def _read_reports(self, rank: RankProcess) -> list[RankEvent]:
        events: list[RankEvent] = []
        for message in rank.link.read():
            match message:
                case RankPrinted(rank=number, line=line):
                    if self._echo is not None:
                        self._echo(number, line)
                case _:
                    events.append(self._report(rank, message))
        return events

    def _report(self, rank: RankProcess, message: Progress | Debugging | TestSlow) -> RankReport:
        return RankReport(
            rank=rank.number,
            message=message,
            at=clock.now(),
            has_foreign_data=rank.link.take_foreign_data(),
            calls=read_calls(rank.call_log) if isinstance(message, StepEnded) else None,
        )

    def _read_output(self, rank: RankProcess) -> Sequence[RankEvent]:
        for stream in (rank.stdout, rank.stderr):
            stream.drain()
            if stream.at_end:
                self._unregister(stream.descriptor)
        return ()

    def _read_exit(self, rank: RankProcess) -> Sequence[RankEvent]:
        """Return the last reports, which still count, and the exit; a rank that closed its connection has ended."""
        if rank.exit_status is not None:
            return ()
        events = self._read_reports(rank)
        kill_reason = _kill_if_disconnected(rank)
        while more := self._read_reports(rank):
            events += more
        for descriptor in (rank.pidfd, rank.link.descriptor):
            self._unregister(descriptor)
        return [*events, self._exit_of(rank, kill_reason)]

    def _exit_of(self, rank: RankProcess, kill_reason: str) -> RankExit:
        if rank.pid in self._stopped:
            # It ended on TERM; once it is reaped, its frozen descendants would have to be found one by one.
            rank.kill_group()
        status = rank.reap()
        # On a busy host, a rank's connection can close seconds before the rank ends.
        was_killed = status == -signal.SIGKILL or rank.link.is_garbled
        return RankExit(
            rank=rank.number,
            status=status,
            at=clock.now(),
            kill_reason=kill_reason if was_killed else "",
            lost="" if status is not None else "its tracer took its exit status",
            by_memory_killer=linux.is_memory_kill(status, self._killed_for_memory),
            stacks=Stacks(self._stacks[rank.number].added(), self._code),
            output=rank.peek_output(),
            waits_for=read_wait(rank.call_log),
            calls=read_calls(rank.call_log),
        )

    def _unregister(self, descriptor: int) -> None:
        with suppress(KeyError):
            if self._selector is not None:
                self._selector.unregister(descriptor)

    def send(self, command: GangCommand) -> None:
        if isinstance(command, Disturb):
            self._disturb(command.how)
            return
        if isinstance(command, RunTest):
            self._test_began = clock.monotonic()
        for rank in self._processes.values():
            if rank.exit_status is None:
                rank.link.send(command)
                if rank.link.is_sending:
                    self._update_events(rank)

    def _update_events(self, rank: RankProcess) -> None:
        """Watch whether the rank's connection is writable while a part of a command is unsent."""
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

    def inspect(self, ranks: Collection[int], *, briefly: bool = False) -> Pending[Inspection]:
        return lambda: self._inspect(ranks, briefly=briefly)

    def _inspect(self, ranks: Collection[int], *, briefly: bool) -> Inspection:
        # Calls first: a rank may continue for a moment once it has written its stacks.
        calls = {number: tuple(read_last_calls(rank.call_log)) for number, rank in self._processes.items()}
        return Inspection(hangs=self._locate(ranks, briefly=briefly), calls=calls)

    def _locate(self, ranks: Collection[int], *, briefly: bool) -> Mapping[int, RankHang]:
        # The process id of a reaped rank may belong to another process by now.
        pids = {rank: self._processes[rank].pid for rank in ranks if self._processes[rank].exit_status is None}
        before = {rank: self._processes[rank].state_before or linux.state_of(pid) for rank, pid in pids.items()}
        # A rank may continue to the end of its test as soon as it has written its stacks.
        phases = {rank: read_phase(self._processes[rank].call_log) for rank in ranks}
        waits = {rank: read_wait(self._processes[rank].call_log) for rank in ranks}
        number = MAIN_STACK_SIGNAL if briefly else STACKS_SIGNAL
        unable = {rank for rank, state in before.items() if state in ("T", "t")}
        # Ranks that will continue must not notice: the signal would kill one that lacks the handler, as after an exec,
        # and wake one that waits for a signal.
        continuing = {rank: pid for rank, pid in pids.items() if pid not in self._stopped}
        unable |= {rank for rank, pid in continuing.items() if not linux.catches(pid, number)}
        unable |= {rank for rank, pid in continuing.items() if linux.may_wait_for_signal(pid)}
        files = {rank: self._stacks[rank].from_now_on() for rank in pids}
        # A rank takes up to a second to write its recording: request it first, and wait for it last.
        recorder = None if briefly else self._recorder
        recordings = recorder.request(pids) if recorder else []
        for rank in set(pids) - unable:
            self._processes[rank].signal(number)
        stacks = dump_stacks(pids, unable, files, self._code, briefly=briefly)
        if recorder:
            recorder.wait(recordings)
        if briefly:  # not where a rank that ends later was
            self._stacks = {**self._stacks, **{rank: file.from_now_on() for rank, file in files.items()}}
        blocked = {
            rank: _BLOCKED.get(before[rank], "") for rank, pid in pids.items() if linux.state_of(pid) == before[rank]
        }
        # Freeze only ranks that are about to be killed: inspecting children may end the children.
        frozen = [rank for rank in pids if rank not in continuing and not briefly]
        self.stop(frozen, Stop.FREEZE)
        deadline = clock.monotonic() + CHILDREN_TIMEOUT
        children = {rank: self._inspect_children(rank, deadline) for rank in frozen}
        return {
            rank: RankHang(
                stacks=stacks.get(rank, Stacks()),
                held=blocked.get(rank, ""),
                phase=phases[rank],
                waits_for=waits[rank],
                children=self._describe_failed_child(rank) + describe_children(children.get(rank, ())),
                child_stacks=child_stacks_text(children.get(rank, ())),
            )
            for rank in ranks
        }

    def _describe_failed_child(self, number: int) -> str:
        """Describe the process that failed first of those that a rank's test has started; empty for none."""
        folder = children_folder(self._shared, number) if self._shared else None
        failed = primary(read_children(folder, number, self._test_began)) if folder else None
        return f"; {failed.message(self._code)} before" if failed else ""

    def _inspect_children(self, number: int, deadline: float) -> Sequence[ChildHang]:
        rank, file = self._processes[number], self._stacks[number]
        folder = children_folder(self._shared, number) if self._shared else None
        parent = ParentRank(
            number=number,
            pid=rank.pid,
            names=labels_of_children(folder, number, self._test_began) if folder else {},
            stacks=file,
            read_stderr=rank.stderr.peek,
            pipes=frozenset(os.fstat(stream.descriptor).st_ino for stream in (rank.stdout, rank.stderr)),
            code=self._code,
        )
        children = inspect_children(parent, deadline)
        file.append(child_stacks_text(children))
        # Children that lead their own session, as torchrun's do, are not orphans: they are killed with the rank.
        self._stopped.update(child.pid for child in children)
        return children

    def take_output(self, title: str) -> Pending[Mapping[int, Output]]:
        return lambda: self._take_output(title)

    def _take_output(self, title: str) -> Mapping[int, Output]:
        outputs = {number: rank.take_output() for number, rank in self._processes.items()}
        for number, output in outputs.items():
            self._logs[number].add(title, output)
        return outputs

    def close(self) -> Pending[Sequence[KilledOrphan]]:
        return self._close

    def _close(self) -> Sequence[KilledOrphan]:
        self._disturbance.close()
        ranks = {pid: number for number, rank in self._processes.items() for pid in rank.ids}
        stopped = {pid for rank in self._processes.values() if rank.pid in self._stopped for pid in rank.ids}
        left = kill_orphans(self._orphans, ranks, stopped | self._stopped, self._mark)
        for rank in self._processes.values():
            rank.close()
        if self._shared is not None:
            evidence.remove_tree(self._shared)
        return left


def _kill_if_disconnected(rank: RankProcess) -> str:
    """Wait for the end of a rank that can no longer report; if it does not end, kill it and return the reason."""
    is_garbled = rank.link.is_garbled
    if not is_garbled and linux.is_readable(rank.pidfd, CLOSED_TIMEOUT):
        return ""
    # The rank alone: it may only be slow to end, and what it leaves behind has to be found.
    rank.signal(signal.SIGKILL)
    linux.is_readable(rank.pidfd, REAP_TIMEOUT)
    return "wrote to its connection to the supervisor" if is_garbled else "closed its connection to the supervisor"
