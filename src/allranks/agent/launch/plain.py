"""Multi-process tests under plain pytest or unittest, without an agent."""

import os
import sys
import tempfile
import unittest
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from allranks.agent.gangs.local_ranks import Echo
from allranks.agent.launch.launch import LaunchOptions
from allranks.agent.launch.launched_rank import RankOptions
from allranks.agent.output import Output
from allranks.protocol.config import TimeLimit, TimeLimits
from allranks.protocol.records import Record


@contextmanager
def rendezvous_file() -> Iterator[str]:
    """Create an empty file for a rendezvous of ranks, and remove it at the end."""
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
    """Time limit of a test in seconds: ``DISTRIBUTED_TESTS_DEFAULT_TIMEOUT``, or 300 if it is not set."""
    return float(os.environ.get(_TIMEOUT_VARIABLE) or _DEFAULT_TIMEOUT)


def default_limit() -> TimeLimit:
    """:func:`default_timeout` with the name of its variable."""
    return TimeLimit(value=default_timeout(), setting=_TIMEOUT_VARIABLE)


PROCESS_GROUP_LIMIT = 60.0
"""Seconds for ranks to create their process group, and to destroy it, while the launching process waits."""

PEER_GRACE = 3.0
"""Seconds for the peers of the first failed rank to end by themselves."""


_SETTINGS = {
    "test": _TIMEOUT_VARIABLE,
    "job": _TIMEOUT_VARIABLE,
    "process_group": "fixed outside of allranks run",
    "peer_grace": "fixed outside of allranks run",
}
"""The setting behind each time limit."""


class PlainLaunchContext:
    """The launch context of tests that run without an agent.

    The ranks' files are in a temporary folder until the ranks end. The ranks' output is printed after each test, with
    the prefix ``[rank N]`` on each line.
    """

    echo: Echo | None = None
    code: Path | None = None

    def __init__(self, peer_grace: float = PEER_GRACE) -> None:
        limit = default_timeout()
        self.limits = TimeLimits(
            process_group=PROCESS_GROUP_LIMIT, test=limit, job=limit, peer_grace=peer_grace, settings=_SETTINGS
        )

    @contextmanager
    def results(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="allranks-ranks-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def launch_options(self, case: unittest.TestCase) -> LaunchOptions:
        return LaunchOptions(nodeid=case.id(), limit=_time_limit(case) or default_limit())

    def rank_options(self, nodeid: str) -> RankOptions:
        return RankOptions(nodeid=nodeid, seed=zlib.crc32(nodeid.encode("utf-8", "surrogatepass")))

    def write(self, record: Record) -> None:
        """Discard a record: the launching process raises the outcomes of its ranks instead."""

    def show_output(self, outputs: Mapping[int, Output]) -> None:
        for rank, output in outputs.items():
            _print_lines(sys.stdout, rank, output.stdout)
            _print_lines(sys.stderr, rank, output.stderr)

    def note_release(self, world_size: int) -> None:
        """Do nothing: without an agent, only the ranks have a time limit, which Launch enforces."""

    def note_quit(self) -> None:
        """Do nothing: the session continues."""


def _time_limit(case: unittest.TestCase) -> TimeLimit | None:
    """The limit of ``@pytest.mark.time_limit(seconds)`` on the test or its class; also works under unittest."""
    test = getattr(type(case), case._testMethodName, None)  # noqa: SLF001 - unittest has no public name for it
    marks = [*getattr(test, "pytestmark", ()), *_as_list(getattr(type(case), "pytestmark", ()))]
    limits = [mark for mark in marks if mark.name == "time_limit"]
    if not limits:
        return None
    from allranks.agent.rank.marker_options import limit_of  # noqa: PLC0415 - needs pytest, which tests with marks import

    return limit_of(limits[0])


def _as_list(marks: object) -> list[object]:
    return list(marks) if isinstance(marks, list | tuple) else [marks]


def _print_lines(stream: TextIO, rank: int, text: str) -> None:
    stream.writelines(f"[rank {rank}] {line}\n" for line in text.splitlines())
