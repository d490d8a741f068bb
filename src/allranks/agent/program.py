"""The messages between a supervisor and its fork server, apart from records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from allranks.protocol.config import AgentConfig, Folders, Selection, TimeLimit
from allranks.protocol.records import KINDS, TESTS_IN_ONE, Record
from allranks.protocol.records import LINE_LIMIT as RECORD_LIMIT
from allranks.protocol.typed_json import by_name, check_length, decode_line, encode_line

LINE_LIMIT: Final = 256 << 20
"""Maximum size of a line in bytes: enough for the names of a million tests."""

LAUNCHER_RANK: Final = 0
"""The rank number of a launcher, the only process of its gang."""


@dataclass(frozen=True, kw_only=True)
class ItemOptions:
    """How to run one test."""

    gang: tuple[str, ...]  # adjacent tests with the same value share a gang
    has_process_group: bool  # the gang joins the cell's process group first
    limit: TimeLimit  # from its start to the report of its last rank
    launches: bool = False  # the test starts its own ranks from a launcher
    is_skipped: bool = False  # the test is marked as skipped and will not start
    reruns: int = 0  # maximum number of reruns of a failed test
    delay: float = 0.0  # seconds before each rerun
    is_fresh: bool = False  # its ranks are new processes that import its file again, not forks
    test_group: str = ""  # multi-process tests of the same group never run at the same time; empty for none
    # ``python FILE Class.test`` can run it, too: it is a unittest case, and its file has a ``__main__`` block.
    is_script: bool = False
    plugin_limit: TimeLimit | None = None  # the limit that pytest-timeout enforces in the ranks

    @property
    def shares_ranks(self) -> bool:
        """Whether its gang may run another test."""
        return self.gang[0] != "test"


@dataclass(frozen=True, kw_only=True)
class SkippedModule:
    """A module that skipped itself during import; its tests are unknown."""

    nodeid: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Program:
    """The tests to run."""

    tests: tuple[str, ...] = ()
    options: tuple[ItemOptions, ...] = ()
    skipped: tuple[SkippedModule, ...] = ()  # modules that skipped themselves
    deselected: int = 0  # the number of tests that the user deselected
    maxfail: int = 0  # the number of failed tests after which the job stops; 0 for no limit
    is_collected_only: bool = False  # run no test
    prints_live: bool = False  # show the ranks' output as it is printed
    missing_hardware: str = ""  # what this host lacks for the cell, so that all tests are skipped; empty for nothing
    python: str = ""  # the version of Python
    ignores_collection_errors: bool = False  # run the collected tests despite collection errors
    measures_coverage: bool = False  # combining and reporting it at the end of the session may take a while


@dataclass(frozen=True, kw_only=True)
class Forked:
    """The result of a request to fork ranks."""

    pids: tuple[int, ...] = ()  # their process ids, in the requested order
    error: str = ""  # why they could not be forked


@dataclass(frozen=True, kw_only=True)
class SessionEnded:
    """pytest's session has ended."""

    status: int  # pytest's final exit status
    own: int  # the exit status before hooks ran


def changed_status(own: int, status: int, where: str = "") -> str:
    """The message that a hook changed pytest's exit status."""
    return f"A hook of the suite or of a plugin changed pytest's exit status{where} from {own} to {status}."


@dataclass(frozen=True, kw_only=True)
class ServerStart:
    """The first line to a fork server."""

    supervisor: int  # process id of the supervisor
    config: AgentConfig  # the job, without its secrets
    folders: Folders


@dataclass(frozen=True, kw_only=True)
class StartRanks:
    """How to start the ranks of one gang; the agent of each node adds the last two fields."""

    gang: int  # number of the gang in its job, from 1
    url: str | None = None  # ``init_method`` of ``init_process_group``; None for a gang without a process group
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the ranks need
    launches: bool = False  # the gang is a launcher, which starts the ranks of its tests itself
    is_kept: bool = False  # the gang may run several tests, so its ranks restore what each test has changed
    has_many_forks: bool = False  # so many ranks follow that a second for cheaper forks pays off
    preload: tuple[str, ...] = ()  # modules that earlier ranks imported late, to import once before the fork
    # For ranks that are new processes instead of forks: the tests of the gang, by index in the collection.
    fresh: Mapping[int, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()  # the ranks of this node, whose descriptors follow
    results: Path = Path()  # the folder of their files


@dataclass(frozen=True, kw_only=True)
class FinalResult:
    """The final result of a test."""

    nodeid: str
    is_bad: bool


@dataclass(frozen=True, kw_only=True)
class Finish:
    """All tests have run: pytest may end its session."""

    tests: tuple[FinalResult, ...] = ()


Reply = Record | Program | Forked | SessionEnded
Request = StartRanks | Finish
_REPLIES: Final[Mapping[str, type[Reply]]] = {**KINDS, **by_name((Program, Forked, SessionEnded))}
_REQUESTS: Final[Mapping[str, type[Request]]] = by_name((StartRanks, Finish))


def batches(tests: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Split a list of tests into batches that fit into one record each."""
    # JSON encodes a character in up to 12 bytes.
    most = max(1, min(TESTS_IN_ONE, RECORD_LIMIT // 16 // max(map(len, tests), default=1)))
    return (tuple(tests[start : start + most]) for start in range(0, len(tests), most))


def encode_message(message: Reply | Request | ServerStart | Selection) -> bytes:
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


def parse_selection(line: bytes) -> Selection:
    """Parse the second line from a supervisor that has sent :class:`ServerStart` before the selection was known."""
    return decode_line(line, by_name((Selection,)))


def launcher_folder(results: Path) -> Path:
    """The folder of a launcher's own files."""
    return results / "driver"
