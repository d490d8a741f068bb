"""One forked rank, as its supervisor holds it: its process, its connections, and its end."""

import os
import signal
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from json import dumps, loads  # now, as a suite may patch them
from typing import NoReturn

from allranks.agent import call_log, linux
from allranks.agent.channel import Link, link_pair
from allranks.agent.orphans import REAP_TIMEOUT, kill_group
from allranks.agent.output import Output, OutputStream

BeRank = Callable[[int, int, int], NoReturn]
"""The work of a fork: called with its rank, and the descriptors of its connection and of its call log."""

UNKNOWN_STATUS = -1000
"""In place of an exit status that another process took."""

Echo = Callable[[int, str], None]
"""Gets each line that a rank prints, with the rank."""


@dataclass(kw_only=True, eq=False)
class RankProcess:
    """The supervisor's side of one rank.

    Attributes:
        session: Process id of the former leader of its session and process group, which has ended: the rank leads
            neither, so that it may leave both.
        pidfd: Readable when the process has ended (pidfd_open(2)).
        board: Descriptor of its call log.
        exit_status: ``os.waitstatus_to_exitcode`` of its end; None while it lives.
        state_before: The state of the process before it was frozen; empty while it is not.
    """

    number: int
    pid: int
    session: int
    pidfd: int
    link: Link
    stdout: OutputStream
    stderr: OutputStream
    board: int
    exit_status: int | None = None
    state_before: str = ""

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
    """Both ends of all connections of a rank that is about to be forked.

    Attributes:
        theirs: The rank's descriptors: of its connection, its standard output, its standard error and its board.
    """

    number: int
    link: Link
    stdout: OutputStream
    stderr: OutputStream
    board: int
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
    """Open the connections of one rank; `undo` closes them.

    Raises:
        OSError: The system has no descriptor left.
    """
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
    """Fork ranks off this process.

    Returns:
        This process's side of each rank, in the order of `numbers`.

    Raises:
        OSError: The system has no process or descriptor left; none of the ranks is left either.
    """
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

    Raises:
        OSError: The system has no process left.
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
