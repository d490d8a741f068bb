"""Launcher tests under a plain pytest or unittest, without an agent."""

import os
import sys
import tempfile
import unittest
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from allranks.agent.launch.launch import LaunchTerms, Workplace
from allranks.agent.launch.launched_rank import RankTerms
from allranks.agent.output import Output
from allranks.protocol.config import TimeLimit, TimeLimits
from allranks.protocol.records import Record


@contextmanager
def meeting_file() -> Iterator[str]:
    """Create a new, empty file as a meeting point for ranks, and remove it at the end."""
    descriptor, name = tempfile.mkstemp(prefix="allranks-")
    os.close(descriptor)
    try:
        yield name
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


_TIMEOUT_VARIABLE = "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"
_DEFAULT_TIMEOUT = 300.0


def default_timeout() -> float:
    """Time limit of a test in seconds: the value of ``DISTRIBUTED_TESTS_DEFAULT_TIMEOUT``, else five minutes."""
    return float(os.environ.get(_TIMEOUT_VARIABLE) or _DEFAULT_TIMEOUT)


def default_limit() -> TimeLimit:
    """That limit, with the name of its variable."""
    return TimeLimit(value=default_timeout(), setting=_TIMEOUT_VARIABLE)


PROCESS_GROUP_LIMIT = 60.0
"""Seconds that ranks get to create, and to destroy, their process group if the launching process waits for it."""

PEER_GRACE = 3.0
"""Seconds that the peers of the first bad rank get to end by themselves."""


_SETTINGS = {
    "test": _TIMEOUT_VARIABLE,
    "job": _TIMEOUT_VARIABLE,
    "process_group": "fixed without an agent",
    "peer_grace": "fixed without an agent",
}
"""What sets each limit here."""


class PlainSurroundings:
    """Provides to launcher tests, without an agent, what an agent would.

    Ranks' files are in a temporary folder while the ranks live. Their output is printed when they have ended their
    test, each line prefixed with ``[rank N]``.
    """

    def __init__(self, peer_grace: float = PEER_GRACE) -> None:
        self._peer_grace = peer_grace

    @contextmanager
    def workplace(self) -> Iterator[Workplace]:
        limit = default_timeout()
        limits = TimeLimits(
            process_group=PROCESS_GROUP_LIMIT, test=limit, job=limit, peer_grace=self._peer_grace, settings=_SETTINGS
        )
        with tempfile.TemporaryDirectory(prefix="allranks-ranks-", ignore_cleanup_errors=True) as folder:
            yield Workplace(results=Path(folder), journal=_Unread(), limits=limits, show=_print)

    def launch_terms(self, case: unittest.TestCase) -> LaunchTerms:
        return LaunchTerms(nodeid=case.id(), limit=_time_limit(case) or default_limit())

    def rank_terms(self, nodeid: str) -> RankTerms:
        return RankTerms(nodeid=nodeid, seed=zlib.crc32(nodeid.encode("utf-8", "surrogatepass")))


class _Unread:
    """Discards records: the outcomes of ranks are raised in the launching process instead."""

    def write(self, record: Record) -> None:
        """See :class:`allranks.agent.record_stream.Journal`."""


def _time_limit(case: unittest.TestCase) -> TimeLimit | None:
    """The limit of ``@pytest.mark.time_limit(seconds)`` on the test or its class, read without a plugin."""
    test = getattr(type(case), case._testMethodName, None)  # noqa: SLF001 - unittest gives the name nowhere else
    marks = [*getattr(test, "pytestmark", ()), *_as_list(getattr(type(case), "pytestmark", ()))]
    limits = [mark for mark in marks if mark.name == "time_limit"]
    if not limits:
        return None
    from allranks.agent.rank.marker_options import limit_of  # noqa: PLC0415 - where there are marks, pytest is

    return limit_of(limits[0])


def _as_list(marks: object) -> list[object]:
    return list(marks) if isinstance(marks, list | tuple) else [marks]


def _print(outputs: Mapping[int, Output]) -> None:
    for rank, output in outputs.items():
        _print_lines(sys.stdout, rank, output.stdout)
        _print_lines(sys.stderr, rank, output.stderr)


def _print_lines(stream: TextIO, rank: int, text: str) -> None:
    stream.writelines(f"[rank {rank}] {line}\n" for line in text.splitlines())
