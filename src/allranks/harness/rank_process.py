"""One forked rank, seen from the agent: its process, its pipes, and how to end it."""

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from allranks.harness.channel import ReportReader


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

    def reap(self) -> None:
        """Take the exit status of a rank whose pidfd is readable."""
        _, status = os.waitpid(self.pid, 0)
        self.exit_status = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Close the agent's descriptors of this rank."""
        for descriptor in (self.pidfd, self.commands, self.reports.descriptor):
            os.close(descriptor)


def fork_ranks(count: int, be_rank: Callable[[int, int, int], NoReturn]) -> list[RankProcess]:
    """Fork `count` ranks.

    Args:
        count: How many.
        be_rank: Called in each fork with its rank, the descriptor of its commands and that of its reports.

    Returns:
        The agent's side of each rank, in rank order.
    """
    ranks: list[RankProcess] = []
    for number in range(count):
        ranks.append(_fork_rank(number, be_rank, _descriptors(ranks)))
    return ranks


def _fork_rank(number: int, be_rank: Callable[[int, int, int], NoReturn], inherited: Iterable[int]) -> RankProcess:
    commands_in, commands_out = os.pipe()
    reports_in, reports_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        for descriptor in (commands_out, reports_in, *inherited):
            os.close(descriptor)
        be_rank(number, commands_in, reports_out)
    os.close(commands_in)
    os.close(reports_out)
    return RankProcess(
        number=number, pid=pid, pidfd=os.pidfd_open(pid), commands=commands_out, reports=ReportReader(reports_in)
    )


def _descriptors(ranks: Iterable[RankProcess]) -> list[int]:
    return [fd for rank in ranks for fd in (rank.pidfd, rank.commands, rank.reports.descriptor)]
