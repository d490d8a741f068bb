"""The messages between a fork server and its supervisor, besides records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from allranks.protocol.config import AgentConfig, Folders, TimeLimit
from allranks.protocol.records import KINDS, TESTS_IN_ONE, Record
from allranks.protocol.records import LINE_LIMIT as RECORD_LIMIT
from allranks.protocol.typed_json import by_name, check_length, decode_line, encode_line

LINE_LIMIT: Final = 256 << 20
"""Bytes of one line: enough for the names of a million tests."""

DRIVER: Final = 0
"""The rank number of a process that launches ranks, the only one of its gang."""


@dataclass(frozen=True, kw_only=True)
class ItemOptions:
    """How one test is run."""

    gang: tuple[str, ...]  # neighbouring tests with the same value share a gang
    has_process_group: bool  # whether the gang joins the cell's process group first
    limit: TimeLimit  # from its release to the report of its last rank
    launches: bool = False  # the test starts its ranks itself, from a driver
    is_skipped: bool = False  # the test is declared to be skipped, and will not begin
    reruns: int = 0  # how many times the test is rerun at most while it goes wrong
    delay: float = 0.0  # seconds before each rerun
    is_fresh: bool = False  # its ranks are no forks: they import its file again
    test_group: str = ""  # launcher tests of one group never overlap one another; empty for none
    # ``python FILE Class.test`` runs it, too: it is a unittest case, and its file has a ``__main__``.
    is_script: bool = False
    plugin_limit: TimeLimit | None = None  # what pytest-timeout enforces in the ranks; None for no limit

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
    """The tests to run."""

    tests: tuple[str, ...] = ()
    terms: tuple[ItemOptions, ...] = ()
    skipped: tuple[SkippedModule, ...] = ()  # modules that are skipped as a whole
    deselected: int = 0  # the number of tests that the user's selection leaves out
    maxfail: int = 0  # the number of bad tests after which the job stops; 0 for none
    is_collected_only: bool = False  # None of them is to be run
    prints_at_once: bool = False  # the ranks' output is shown as it is printed
    lacks: str = ""  # what the host lacks for the cell, in words: every test will be skipped; empty for nothing
    python: str = ""
    goes_on: bool = False  # the collected tests run in spite of errors of collection
    measures: bool = False  # coverage is combined and reported when pytest ends its session, which may take a while


@dataclass(frozen=True, kw_only=True)
class Forked:
    """Ranks have been forked, or could not be."""

    pids: tuple[int, ...] = ()  # their process ids, in the requested order
    error: str = ""  # why there are none


@dataclass(frozen=True, kw_only=True)
class SessionEnded:
    """pytest's session has ended."""

    status: int  # pytest's exit status
    own: int  # the one that pytest itself had determined


def changed_status(own: int, status: int, where: str = "") -> str:
    """In a sentence, that hooks have changed pytest's exit status, or have left with another one."""
    return f"A hook of the suite's or of a plugin's has changed pytest's exit status{where} from {own} to {status}."


@dataclass(frozen=True, kw_only=True)
class ServerStart:
    """The first line to a fork server."""

    supervisor: int  # process id of the supervisor
    config: AgentConfig  # the job, without its secrets
    folders: Folders


@dataclass(frozen=True, kw_only=True)
class StartRanks:
    """How to start the ranks of one gang: the same on every node, whose agent adds what its fork server has to know."""

    gang: int  # number of the gang in its job, from 1
    # What ``init_process_group`` takes as ``init_method``; None for a gang without a process group.
    url: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the ranks need
    launches: bool = False  # the gang is a driver, which starts the ranks of its tests itself
    has_many_forks: bool = False  # making forks cheaper pays, which takes the better part of a second
    # Modules that earlier ranks imported late; importing them once before the fork saves each rank the cost.
    preload: tuple[str, ...] = ()
    # If the ranks are to be no forks, the tests of the gang, by their index in the collection.
    fresh: Mapping[int, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()  # those of this node, whose descriptors follow
    results: Path = Path()  # the folder of their files


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
Request = StartRanks | Finish
_REPLIES: Final[Mapping[str, type[Reply]]] = {**KINDS, **by_name((Program, Forked, SessionEnded))}
_REQUESTS: Final[Mapping[str, type[Request]]] = by_name((StartRanks, Finish))


def parts_of(tests: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Split a list of tests into parts that are short enough for one record each, also where names are long."""
    # JSON takes up to 12 bytes for a character.
    most = max(1, min(TESTS_IN_ONE, RECORD_LIMIT // 16 // max(map(len, tests), default=1)))
    return (tuple(tests[start : start + most]) for start in range(0, len(tests), most))


def line_of(message: Reply | Request | ServerStart) -> bytes:
    """The line of a message, with its line feed."""
    return encode_line(message) + b"\n"


def parse_reply(line: bytes) -> Reply:
    """Parse a line from a fork server."""
    reply = decode_line(line, _REPLIES)
    if isinstance(reply, Record):
        check_length(line, RECORD_LIMIT)
    return reply


def parse_request(line: bytes) -> Request:
    """Parse a line from a supervisor."""
    return decode_line(line, _REQUESTS)


def parse_start(line: bytes) -> ServerStart:
    """Parse the first line from a supervisor."""
    return decode_line(line, by_name((ServerStart,)))


def driver_folder(results: Path) -> Path:
    """The folder of the own files of a process that launches ranks."""
    return results / "driver"
