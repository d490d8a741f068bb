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

from allranks.harness.config import TimeLimits
from allranks.harness.gangs.output import Output
from allranks.harness.launchers.launch import LaunchTerms, Workplace
from allranks.harness.launchers.launched_rank import RankTerms
from allranks.records import Record


@contextmanager
def meeting_file() -> Iterator[str]:
    """An empty file that nobody had before, for as long as ranks may meet at it."""
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
    """Seconds that a test may take: what ``DISTRIBUTED_TESTS_DEFAULT_TIMEOUT`` says, else five minutes."""
    return float(os.environ.get(_TIMEOUT_VARIABLE) or _DEFAULT_TIMEOUT)


PROCESS_GROUP_LIMIT = 60.0
"""Seconds that ranks get to make, and to destroy, their process group where the launching process waits for it."""

PEER_GRACE = 3.0
"""Seconds that the peers of the first bad rank get to end by themselves."""


class PlainSurroundings:
    """What a launcher test depends on an agent for, without one.

    Ranks' files are in a temporary folder for as long as the ranks live, and what they print is printed, each line with
    ``[rank N]`` before it, when they have ended their test.

    Args:
        peer_grace: Seconds.
    """

    def __init__(self, peer_grace: float = PEER_GRACE) -> None:
        self._peer_grace = peer_grace

    @contextmanager
    def workplace(self, _case: type[unittest.TestCase]) -> Iterator[Workplace]:
        """See :class:`allranks.harness.launchers.launch.LaunchContext`."""
        limit = default_timeout()
        limits = TimeLimits(process_group=PROCESS_GROUP_LIMIT, test=limit, job=limit, peer_grace=self._peer_grace)
        with tempfile.TemporaryDirectory(prefix="allranks-ranks-", ignore_cleanup_errors=True) as folder:
            yield Workplace(results=Path(folder), journal=_Unread(), limits=limits, show=_print)

    def launch_terms(self, case: unittest.TestCase) -> LaunchTerms:
        """See :class:`allranks.harness.launchers.launch.LaunchContext`."""
        return LaunchTerms(nodeid=case.id(), limit=_time_limit(case) or default_timeout())

    def rank_terms(self, case: unittest.TestCase) -> RankTerms:
        """See :class:`allranks.harness.launchers.launch.LaunchContext`."""
        return RankTerms(nodeid=case.id(), seed=zlib.crc32(case.id().encode("utf-8", "surrogatepass")))


class _Unread:
    """Takes records that nobody reads: what the ranks came to is raised in the launching process."""

    def write(self, record: Record) -> None:
        """See :class:`allranks.harness.gangs.ends.Journal`."""


def _time_limit(case: unittest.TestCase) -> float | None:
    """What ``@pytest.mark.time_limit(seconds)`` says on the test or on its class; no plugin is needed for it."""
    test = getattr(type(case), case._testMethodName, None)  # noqa: SLF001 - unittest gives the name nowhere else
    marks = [*getattr(test, "pytestmark", ()), *_as_list(getattr(type(case), "pytestmark", ()))]
    return next((float(mark.args[0]) for mark in marks if mark.name == "time_limit"), None)


def _as_list(marks: object) -> list[object]:
    return list(marks) if isinstance(marks, list | tuple) else [marks]


def _print(outputs: Mapping[int, Output]) -> None:
    for rank, output in outputs.items():
        _print_lines(sys.stdout, rank, output.stdout)
        _print_lines(sys.stderr, rank, output.stderr)


def _print_lines(stream: TextIO, rank: int, text: str) -> None:
    stream.writelines(f"[rank {rank}] {line}\n" for line in text.splitlines())
