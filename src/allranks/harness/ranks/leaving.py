"""A rank that ends its own process says so first: an exit status means a skip only where the test itself chose it.

``os._exit`` is replaced before the suite is imported. In a rank, the main thread announces the status; what another
thread, C code or a process that a test has forked ends with is announced by nobody.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from allranks.harness.channel import Leaving, RankEnd, Report
from allranks.harness.phases import Phase
from allranks.harness.ranks.measured import save_coverage
from allranks.testing.skips import skipcodes

_exit = os._exit


@dataclass
class _Rank:
    connection: RankEnd | None = None
    take_phases: Callable[[], tuple[Phase, ...]] = tuple
    nodeid: str = ""
    pid: int = 0


_rank = _Rank()


def watch_exits() -> None:
    """Have ``os._exit`` announce the exit of a rank."""
    os._exit = leave


def announce_to(connection: RankEnd, take_phases: Callable[[], tuple[Phase, ...]] = tuple) -> None:
    """Be a rank from here on.

    Args:
        connection: Its end of the connection.
        take_phases: Gives the phases that have ended and are not reported yet.
    """
    _rank.connection, _rank.take_phases, _rank.pid = connection, take_phases, os.getpid()


def now_running(nodeid: str) -> None:
    """The rank is in this test."""
    _rank.nodeid = nodeid


def tell(report: Report) -> None:
    """Have the supervisor know something, if this process is a rank."""
    if _rank.connection is not None and _rank.pid == os.getpid():
        _rank.connection.report(report)


def leave(status: int) -> NoReturn:
    """End this process, as ``os._exit`` does."""
    is_own = _rank.pid == os.getpid() and threading.current_thread() is threading.main_thread()
    if _rank.connection is not None and is_own and isinstance(status, int):
        save_coverage()
        with suppress(Exception):
            leaving = Leaving(status=status, reason=skipcodes.reason_of_exit(status) or "")
            phases = _rank.take_phases()
            _rank.connection.report(Report(nodeid=_rank.nodeid, phases=phases, leaving=leaving))
    _exit(status)
