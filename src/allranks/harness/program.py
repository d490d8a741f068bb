"""A fork server's reports to its supervisor, besides records: the tests, and its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from allranks.records import KINDS, Record
from allranks.records import LINE_LIMIT as RECORD_LIMIT
from allranks.typed_json import check_length, decode_line, encode_line

LINE_LIMIT: Final = 256 << 20
"""Bytes of one line: enough for the names of a million tests."""


@dataclass(frozen=True, kw_only=True)
class ItemOptions:
    """How one test is run.

    Attributes:
        gang: Neighbouring tests with the same value share a gang.
        has_process_group: Whether the gang joins the cell's process group first.
        limit: Seconds from its release to the report of its last rank.
        launches: The test starts its ranks itself, from a driver.
        is_skipped: The test is declared to be skipped, and will not begin.
        reruns: How many times the test is rerun at most while it goes wrong.
        delay: Seconds before each rerun.
        is_fresh: Its ranks are no forks: they import its file again.
        is_script: ``python FILE Class.test`` runs it, too: it is a unittest case, and its file has a ``__main__``.
        test_group: Launcher tests of one group never overlap one another; empty for none.
    """

    gang: tuple[str, ...]
    has_process_group: bool
    limit: float
    launches: bool = False
    is_skipped: bool = False
    reruns: int = 0
    delay: float = 0.0
    is_fresh: bool = False
    test_group: str = ""
    is_script: bool = False

    @property
    def shares_ranks(self) -> bool:
        """Whether the ranks may be kept for another test."""
        return self.gang[0] != "test"


@dataclass(frozen=True, kw_only=True)
class SkippedModule:
    """A module that skipped itself on import; its tests are unknown."""

    nodeid: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Program:
    """The tests to run.

    Attributes:
        skipped: Modules that are skipped as a whole.
        deselected: The number of tests that the user's selection leaves out.
        maxfail: The number of bad tests after which the job stops; 0 for none.
        is_collected_only: None of them is to be run.
        prints_at_once: The ranks' output is shown as it is printed.
        lacks: What the host lacks for the cell, in words: every test will be skipped; empty for nothing.
        goes_on: The collected tests run in spite of errors of collection.
        measures: Coverage is combined and reported when pytest ends its session, which may take a while.
    """

    tests: tuple[str, ...] = ()
    terms: tuple[ItemOptions, ...] = ()
    skipped: tuple[SkippedModule, ...] = ()
    deselected: int = 0
    maxfail: int = 0
    is_collected_only: bool = False
    prints_at_once: bool = False
    lacks: str = ""
    python: str = ""
    goes_on: bool = False
    measures: bool = False


@dataclass(frozen=True, kw_only=True)
class Forked:
    """Ranks have been forked, or could not be.

    Attributes:
        pids: Their process ids, in the requested order.
        error: Why there are none.
    """

    pids: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class SessionEnded:
    """pytest's session has ended.

    Attributes:
        status: pytest's exit status.
        changed: How a hook has changed pytest's own status; empty if none has.
    """

    status: int
    changed: str = ""


@dataclass(frozen=True, kw_only=True)
class StartGang:
    """A request to fork ranks; their descriptors follow.

    Attributes:
        gang: Number of the gang in its job, from 1.
        url: What ``init_process_group`` takes as ``init_method``; None for a gang without a process group.
        environment: Variables that the ranks need, as ``NAME=value``.
        launches: The forked process is a driver.
        preload: Modules that earlier ranks imported late.
        has_many_forks: Making forks cheaper pays, which takes the better part of a second.
        results: The folder of the ranks' files.
        fresh: If the ranks are to be no forks, the tests of the gang, each as "INDEX NODEID".
    """

    ranks: tuple[int, ...]
    gang: int
    url: str | None = None
    environment: tuple[str, ...] = ()
    launches: bool = False
    preload: tuple[str, ...] = ()
    has_many_forks: bool = False
    results: str = ""
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Settled:
    """The final result of a test."""

    nodeid: str
    is_bad: bool


@dataclass(frozen=True, kw_only=True)
class Finish:
    """All tests have run: pytest may end its session."""

    tests: tuple[Settled, ...] = ()


Reply = Record | Program | Forked | SessionEnded
Request = StartGang | Finish
_REPLIES: Final[Mapping[str, type[Reply]]] = {
    **KINDS,
    **{kind.__name__: kind for kind in (Program, Forked, SessionEnded)},
}
_REQUESTS: Final[Mapping[str, type[Request]]] = {kind.__name__: kind for kind in (StartGang, Finish)}


def line_of(message: Reply | Request) -> bytes:
    """The line of a message, with its line feed."""
    return encode_line(message) + b"\n"


def parse_reply(line: bytes) -> Reply:
    """Parse a line from a fork server.

    Raises:
        RecordError: It is no message of this version.
    """
    reply = decode_line(line, _REPLIES)
    if isinstance(reply, Record):
        check_length(line, RECORD_LIMIT)
    return reply


def parse_request(line: bytes) -> Request:
    """Parse a line from a supervisor.

    Raises:
        RecordError: It is no request of this version.
    """
    return decode_line(line, _REQUESTS)
