"""Records: all that a job reports, as types, with one function to write and one to read them.

A line is a JSON array of the record's name and an object with the fields that differ from their defaults. This module
needs only the standard library: agents write records inside a job, the orchestrator and ``merge`` read them.
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
"""Bytes of one line; only a very long list of tests comes near it, and is split into several records."""

TESTS_IN_ONE: Final = 2_000
"""The most tests that one record may name."""

MOST_RANKS: Final = 16_384
"""The most ranks that a test may have; a record with more could make a reader account for a billion of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The base of all records."""

    at: float = 0.0  # seconds since the epoch; the clock of the agent that wrote it is never set during a job


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStarted(Record):
    """The host has started an attempt at a job: the first record of its journal, never written by an agent."""

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
    """The agents of these nodes have joined the leading agent."""

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
    """A remark for readers of the report that belongs to no testcase; one without a kind cannot be turned off."""

    text: str
    nodeid: str = ""
    kind: NoticeKind | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteWarning(Record):
    """A Python warning of the process that collects the suite."""

    file: str  # relative to the code of the job, if it is in there
    line: int
    category: str  # the name of the warning's class
    text: str  # one line


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectionFailed(Record):
    """Something cannot be collected; an empty node id stands for the whole suite."""

    text: str
    nodeid: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared(Record):
    """A digest of how the agent split the suite of its shard, and the number of tests that belong to other jobs."""

    split: str
    elsewhere: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FullCollection(Record):
    """All tests that pytest collected, in one record or several; a shard or a later attempt runs a part of them.

    Each has the digest of its parameter values, by which all processes of a run compare their collections.
    """

    tests: tuple[str, ...]
    digests: tuple[str, ...]  # of :func:`allranks.protocol.parameter_values.digest`, in the same order


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected(Record):
    """The tests to run, in order; a very long list comes in several records, of which one is the last."""

    tests: tuple[str, ...] = ()
    deselected: int = 0
    is_last: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Tagged(Record):
    """What tests show of a backend, each as ``name=value``, for the table of capabilities: no verdict depends on it."""

    tests: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Went(Record):
    """The agent has been given its turn."""


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
    may_disagree: bool = False  # true if some of its ranks may skip it while others run it
    number: int = 1  # from 1; each further attempt replaces the ones before it, which went wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed(Record):
    """A test has passed on some ranks, with nothing more to report."""

    nodeid: str
    ranks: tuple[int, ...]  # those ranks
    arrived: tuple[float, ...]  # for each, when it ended, as :attr:`RankEnded.arrived`
    seconds: tuple[float, ...]  # for each, the duration of all its phases
    world_size: int  # the number of ranks of the test

    @property
    def outcome(self) -> Outcome:
        """The outcome of each of these ranks, as :attr:`RankEnded.outcome` has it for one."""
        return Outcome.PASSED


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseEnd:
    """One phase of one test on one rank: ``setup``, ``call``, ``teardown``, or ``collect`` of a whole module."""

    when: str
    outcome: Outcome
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnded(Record):
    """The end of a test on one rank, unless it just passed; of several on one rank, the first bad one counts."""

    nodeid: str
    rank: int
    outcome: Outcome
    world_size: int
    arrived: float  # when the rank ended, in seconds since the epoch on the clock of the leading agent
    phases: tuple[PhaseEnd, ...] = ()  # the phases that the rank reported
    # Seconds from the start of the test to an end that the agent observed itself; 0 for any other.
    observed: float = 0.0
    phase: str = ""  # the deciding phase; empty if the agent observed the end itself
    message: str = ""  # one line
    text: str = ""  # a traceback, stacks, or the reason of a skip
    stdout: str = ""
    stderr: str = ""
    caused_by: int | None = None  # the rank that failed first, if this one was stopped because of it
    # True if another rank's bad end caused it, or preceded it within the grace: it decides nothing.
    consequence: bool = False
    is_lost: bool = False  # true if the end of the rank is unknown because its node is gone
    skip_kind: SkipKind | None = None
    skip_code: int | None = None  # torch's exit code, for a skip that has one
    gpus_needed: int | None = None  # the number of GPUs (or other accelerators) that a hardware skip asked for

    @property
    def seconds(self) -> float:
        """The duration of all phases, and of one that the rank did not end."""
        return max(self.observed, sum(phase.seconds for phase in self.phases))


@dataclass(frozen=True, kw_only=True, slots=True)
class EnteredCollective:
    """A collective of a process group, and when ranks called it: in seconds from the start of their test."""

    group: str
    number: int
    kind: str
    ranks: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCourse(Record):
    """How a test that went wrong took its course, for readers of the report: no verdict depends on it."""

    nodeid: str
    collectives: tuple[EnteredCollective, ...] = ()  # the last ones of the test, bounded in number
    passed: int | None = None  # a rank that passed and printed something; None if there is none
    stdout: str = ""  # of that rank
    stderr: str = ""  # of that rank


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftBehind(Record):
    """A process that outlived the rank that started it, and was killed; None as its rank if that is unknown."""

    nodeid: str
    rank: int | None
    pid: int
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NotRun(Record):
    """Collected tests that are not run, and why."""

    tests: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeated(Record):
    """How a test has fared so far that a job repeats; of several records of a test the last counts."""

    nodeid: str
    tally: RepetitionTally
    runs: int = 0  # repetitions of all tests of the job until now
    bad: int = 0  # those of them that went wrong


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed(Record):
    """A line that a rank has just printed; shown but not stored."""

    rank: int
    line: str


class FailureKind(Enum):
    """The kind of failure that stops an agent; it selects the remedy that is shown."""

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
    """The agent cannot do its work, or the rest of it."""

    message: str
    text: str = ""
    kind: FailureKind = FailureKind.BROKEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupted(Record):
    """The job was ended from outside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTimedOut(Record):
    """The job's time is up."""

    limit: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Record):
    """The agent has done all its work: a job without this record is not good."""

    status: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerEnded(Record):
    """The agent in a container has ended, as the container init reports."""

    status: int  # the exit status, in the form of `subprocess`
    memory_kills: int  # the number of processes that the kernel killed for lack of memory


KINDS: Final[Mapping[str, type[Record]]] = by_name(Record.__subclasses__())
"""All records, by the names that their lines begin with."""


def encode(record: Record) -> bytes:
    """The line of a record, without its line feed."""
    return encode_line(record)


def decode(line: bytes) -> Record:
    """The record of a line."""
    check_length(line, LINE_LIMIT)
    return decode_line(line, KINDS)
