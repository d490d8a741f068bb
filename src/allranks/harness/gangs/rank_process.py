"""One forked rank, seen from the agent: its process, its pipes, and how to end it."""

import os
import signal
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn

from allranks.harness.channel import ReportReader
from allranks.harness.gangs.output import Output, OutputStream

BeRank = Callable[[int, int, int], NoReturn]
"""What a fork does: called with its rank, the descriptor of its commands and that of its reports."""

Echo = Callable[[int, str], None]
"""Gets each line that a rank prints, with the rank."""


@dataclass(kw_only=True, eq=False)
class RankProcess:
    """The agent's side of one rank.

    Attributes:
        pidfd: Readable when the process has ended (pidfd_open(2)).
        exit_status: ``os.waitstatus_to_exitcode`` of its end; None while it lives.
    """

    number: int
    pid: int
    pidfd: int
    commands: int
    reports: ReportReader
    stdout: OutputStream
    stderr: OutputStream
    exit_status: int | None = None

    def signal(self, number: int) -> None:
        """Send a signal to the rank alone."""
        if self.exit_status is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def kill_group(self) -> None:
        """KILL the rank with all that it started and that stayed in its process group.

        Only while the rank has not been reaped: until then nobody else can get its process id.
        """
        if self.exit_status is not None:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            # It has not come as far as making a process group of its own.
            self.signal(signal.SIGKILL)

    def reap(self) -> int:
        """Take the exit status of a rank whose pidfd is readable."""
        _, status = os.waitpid(self.pid, 0)
        self.exit_status = os.waitstatus_to_exitcode(status)
        return self.exit_status

    def end(self) -> None:
        """Kill it, and let go of it."""
        self.kill_group()
        if self.exit_status is None:
            self.reap()
        self.close()

    def glance(self) -> Output:
        """What the rank has printed since :meth:`take_output` was last called, which will give it again."""
        return Output(stdout=self.stdout.glance(), stderr=self.stderr.glance())

    def take_output(self) -> Output:
        """What the rank has printed since the last call."""
        return Output(stdout=self.stdout.take(), stderr=self.stderr.take())

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The agent's descriptors of this rank."""
        return self.pidfd, self.commands, self.reports.descriptor, self.stdout.descriptor, self.stderr.descriptor

    def close(self) -> None:
        """Close the agent's descriptors of this rank."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def fork_ranks(numbers: Iterable[int], be_rank: BeRank, echo: Echo | None = None) -> list[RankProcess]:
    """Fork ranks.

    Args:
        numbers: Their ranks.
        be_rank: What each fork does.
        echo: Gets each line that they print; None for nobody.

    Returns:
        The agent's side of each rank, in the order of `numbers`.

    Raises:
        OSError: The system has no process or descriptor left; none of the ranks is left either.
    """
    ranks: list[RankProcess] = []
    try:
        for number in numbers:
            inherited = [descriptor for rank in ranks for descriptor in rank.descriptors]
            ranks.append(_fork_rank(number, be_rank, inherited, echo))
    except BaseException:
        for rank in ranks:
            rank.end()
        raise
    return ranks


def _fork_rank(number: int, be_rank: BeRank, inherited: Iterable[int], echo: Echo | None) -> RankProcess:
    with ExitStack() as undo:
        commands_in, commands_out = _pipe(undo)
        reports_in, reports_out = _pipe(undo)
        stdout_in, stdout_out = _pipe(undo)
        stderr_in, stderr_out = _pipe(undo)
        pid = os.fork()
        if pid == 0:
            others = (commands_out, reports_in, stdout_in, stderr_in, *inherited)
            _be_fork(others, (stdout_out, stderr_out), lambda: be_rank(number, commands_in, reports_out))
        undo.callback(_end, pid)
        pidfd = os.pidfd_open(pid)
        undo.pop_all()
    for descriptor in (commands_in, reports_out, stdout_out, stderr_out):
        os.close(descriptor)
    say = None if echo is None else lambda line: echo(number, line)
    return RankProcess(
        number=number,
        pid=pid,
        pidfd=pidfd,
        commands=commands_out,
        reports=ReportReader(reports_in),
        stdout=OutputStream(stdout_in, say),
        stderr=OutputStream(stderr_in, say),
    )


def _pipe(undo: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for descriptor in ends:
        undo.callback(os.close, descriptor)
    return ends


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _be_fork(others: Iterable[int], outputs: Iterable[int], work: Callable[[], NoReturn]) -> NoReturn:
    """Go on as the fork; an exception must not make it a second agent."""
    try:
        for descriptor in others:
            os.close(descriptor)
        for target, descriptor in enumerate(outputs, start=1):
            os.dup2(descriptor, target)
            os.close(descriptor)
        work()
    except BaseException:  # noqa: BLE001 - there is nobody left to raise to
        traceback.print_exc()
    finally:
        os._exit(1)
