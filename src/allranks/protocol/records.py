"""The records that a job sends as results, with one function to write and one to read them.

A line is a JSON array of the record's name and an object with the fields that differ from their defaults. Agents write
records inside a job; the orchestrator and ``merge`` read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from allranks.protocol.choices import NoticeKind
from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.repetitions import RepetitionTally
from allranks.protocol.typed_json import by_name, check_length, decode_line, encode_line

SCHEMA: Final = 2
"""Incremented when an older reader could misread new records."""

JOURNAL: Final = "journal.jsonl"
"""The journal of an attempt at a job, in its folder on the host: one line per record except :class:`Printed`."""

LINE_LIMIT: Final = 4 << 20
"""Bytes of one line; a very long list of tests, which could exceed it, is split into several records."""

TESTS_IN_ONE: Final = 2_000
"""The most tests in one record."""

MOST_RANKS: Final = 16_384
"""The most ranks of a test; without this limit, a record could make a reader account for a billion ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The base of all records."""

    at: float = 0.0  # seconds since the epoch, on a clock of the writing agent that is never adjusted during a job


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStarted(Record):
    """The host has started an attempt at a job: the first record of the journal, which no agent writes."""

    schema: int
    run_id: str
    cell: str
    suite: str
    attempt: int
    world_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun(Record):
    """An agent has started: its first record."""

    schema: int
    node: int = 0
    pid: int = 0
    python: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported(Record):
    """torch has been imported."""

    torch: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesMet(Record):
    """The agents of these nodes have joined the lead agent."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesAgreed(Record):
    """All nodes have collected the same tests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesFailed(Record):
    """The agents of a job cannot work together."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLost(Record):
    """The agent of a node has stopped answering."""

    node: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GpusChecked(Record):
    """The GPUs with these ids passed the compute check."""

    gpus: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFailed(Record):
    """A GPU failed the compute check."""

    gpu: str
    name: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice(Record):
    """A notice for readers of the report; a notice without a kind cannot be turned off."""

    text: str
    nodeid: str = ""
    kind: NoticeKind | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteWarning(Record):
    """A Python warning in the process that collects the suite."""

    file: str  # relative to the code of the job, if it is below it
    line: int
    category: str  # the name of the warning's class
    text: str  # one line


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectionFailed(Record):
    """A module, or the whole suite if the node id is empty, cannot be collected."""

    text: str
    nodeid: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared(Record):
    """A digest of the assignment of tests to shards, and the number of tests in other shards."""

    split: str
    elsewhere: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FullCollection(Record):
    """All tests that pytest collected, in one or more records; a shard or a later attempt runs a part of them.

    All processes of a run compare their collections, including the digests of the parameter values.
    """

    tests: tuple[str, ...]
    digests: tuple[str, ...]  # of :func:`allranks.protocol.parameter_values.digest`, in the same order


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected(Record):
    """The tests to run, in order; a very long list is split into several records."""

    tests: tuple[str, ...] = ()
    deselected: int = 0
    is_last: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Tagged(Record):
    """Tags of tests as ``name=value`` for the table of a backend's capabilities; no verdict depends on them."""

    tests: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Went(Record):
    """The host has allowed the agent to run its tests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GangStarted(Record):
    """Ranks have been started."""

    gang: int
    pids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GangReady(Record):
    """All ranks of the gang have joined the process group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestStarted(Record):
    """A test is about to start on its ranks, all with the same seed."""

    __test__ = False  # not a test class, despite its name

    nodeid: str
    seed: int = 0
    may_disagree: bool = False  # true if some ranks may skip it while others run it
    number: int = 1  # the number of this try, from 1; its outcome replaces those of the failed tries before it


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """Where some ranks of a running test are."""

    ranks: tuple[int, ...]
    frame: str  # the innermost frame of user code, as ``file:line in function``; empty if unknown
    is_waiting: bool  # for other ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class TestSlow(Record):
    """A test has been running for long, as it has whenever that time has doubled since the last such record."""

    __test__ = False  # not a test class, despite its name

    nodeid: str
    seconds: float  # since its start
    ended: tuple[int, ...]  # the ranks that have ended it
    locations: tuple[Location, ...]  # of the other ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed(Record):
    """A test has passed on some ranks, without output."""

    nodeid: str
    ranks: tuple[int, ...]
    arrived: tuple[float, ...]  # when each rank ended, as :attr:`RankEnded.arrived`
    seconds: tuple[float, ...]  # the duration of all phases on each rank
    world_size: int  # the number of ranks of the test

    @property
    def outcome(self) -> Outcome:
        return Outcome.PASSED


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseEnd:
    """One phase of one test on one rank: ``setup``, ``call``, ``teardown``, or ``collect`` of a whole module."""

    when: str
    outcome: Outcome
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnded(Record):
    """The end of a test on one rank, other than :class:`Passed`; the first failure of a rank counts."""

    nodeid: str
    rank: int
    outcome: Outcome
    world_size: int
    arrived: float  # when the rank ended, in seconds since the epoch on the lead agent's clock
    phases: tuple[PhaseEnd, ...] = ()  # the phases that the rank reported
    # If the agent itself observed the end: seconds from the start of the test; else 0.
    observed: float = 0.0
    phase: str = ""  # the deciding phase; empty if the agent observed the end itself
    message: str = ""  # one line
    text: str = ""  # a traceback, stacks, or the reason of a skip
    stdout: str = ""
    stderr: str = ""
    caused_by: int | None = None  # the rank that failed first, if this one was stopped because of it
    consequence: bool = False  # true for a secondary failure: another rank caused it, or failed shortly before
    is_lost: bool = False  # true if the end of the rank is unknown because its node was lost
    skip_kind: SkipKind | None = None
    skip_code: int | None = None  # torch's exit code, for a skip that has one
    gpus_needed: int | None = None  # the number of GPUs (or other accelerators) that a hardware skip requires

    @property
    def seconds(self) -> float:
        """The duration of all phases, including one that the rank did not complete."""
        return max(self.observed, sum(phase.seconds for phase in self.phases))


@dataclass(frozen=True, kw_only=True, slots=True)
class EnteredCollective:
    """A collective of a process group, and when ranks called it, in seconds from the start of the test."""

    group: str
    number: int
    kind: str
    ranks: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCourse(Record):
    """The timeline of a failed test, for readers of the report; no verdict depends on it."""

    nodeid: str
    collectives: tuple[EnteredCollective, ...] = ()  # the last collectives of the test
    passed: int | None = None  # a rank that passed and printed the following output
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftBehind(Record):
    """A process that outlived the rank that started it, and was killed."""

    nodeid: str
    rank: int | None  # None if unknown
    pid: int
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NotRun(Record):
    """Collected tests that are not run, and why."""

    tests: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeated(Record):
    """The tally of a repeated test so far; of several records of a test, the last one counts."""

    nodeid: str
    tally: RepetitionTally
    runs: int = 0  # repetitions of all tests of the job so far
    bad: int = 0  # failed repetitions among them


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed(Record):
    """A line of a rank's output, which is shown but not stored."""

    rank: int
    line: str


class FailureKind(Enum):
    """The kind of an agent's failure, which selects the remedy in the report."""

    BROKEN = "broken"
    CANNOT_IMPORT = "cannot_import"
    OUT_OF_MEMORY = "out_of_memory"
    KERNEL = "kernel"
    OTHER_TORCH = "other_torch"
    GPU = "gpu"
    SUITE = "suite"
    GATE = "gate"
    USAGE = "usage"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentFailed(Record):
    """The agent cannot continue."""

    message: str
    text: str = ""
    kind: FailureKind = FailureKind.BROKEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupted(Record):
    """The job was ended from outside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTimedOut(Record):
    """The job reached its time limit."""

    limit: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Record):
    """The agent has completed the job; a job without this record does not pass."""

    status: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerEnded(Record):
    """The agent in a container has ended, as the container init reports."""

    status: int  # the exit status, negative for a signal
    memory_kills: int  # the number of processes that the kernel's out-of-memory killer ended


KINDS: Final[Mapping[str, type[Record]]] = by_name(Record.__subclasses__())
"""All records, by the names with which their lines begin."""


def encode(record: Record) -> bytes:
    """Encode a record as a line, without a line feed."""
    return encode_line(record)


def decode(line: bytes) -> Record:
    """Decode a line; RecordError if it is not a record."""
    check_length(line, LINE_LIMIT)
    return decode_line(line, KINDS)
