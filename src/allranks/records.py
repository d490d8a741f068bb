"""Records: all that a job reports, as types, with one function to write and one to read them.

A line is a JSON array of the record's name and an object of those of its fields that differ from their defaults. The
standard library alone is needed: agents write records inside a job, the orchestrator and ``merge`` read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from json import dumps, loads
from typing import Final

from allranks.outcomes import Outcome, SkipKind
from allranks.typed_json import RecordError, build, told

SCHEMA: Final = 2
"""Changes when a reader of before could misread what is written now."""

JOURNAL: Final = "journal.jsonl"
"""The journal of an attempt at a job, in its folder on the host: a line for each record but :class:`Printed`."""

LINE_LIMIT: Final = 4 << 20
"""Bytes of one line; only a list of very many tests comes near it, and is written in several records."""

TESTS_IN_ONE: Final = 2_000
"""Tests that one record may name."""

MOST_RANKS: Final = 16_384
"""Ranks that a test may have: whoever claims more would have a reader account for a billion of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What all records have.

    Attributes:
        at: Seconds since the epoch, on the clock of the agent that wrote it.
    """

    at: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStarted(Record):
    """The host has started an attempt at a job: the first record of its journal, and never an agent's."""

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
    """The leading agent has met those of these nodes."""

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
    """The agent of a node does not answer any more."""

    node: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GpusChecked(Record):
    """These GPUs compute, by id."""

    gpus: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFailed(Record):
    """A GPU does not compute."""

    gpu: str
    name: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice(Record):
    """Something that a reader of the report should know, and no testcase says."""

    text: str
    nodeid: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectionFailed(Record):
    """Something cannot be collected; an empty node id is the suite as a whole."""

    text: str
    nodeid: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared(Record):
    """How the agent split the suite that its job has a share of.

    Attributes:
        split: A digest of who runs what.
        elsewhere: How many tests are other jobs'.
    """

    split: str
    elsewhere: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected(Record):
    """Tests that are to be run, in their order; of very many, some.

    Attributes:
        is_last: No more of them follow.
    """

    tests: tuple[str, ...] = ()
    deselected: int = 0
    is_last: bool = True


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
    """All ranks of the gang are in the process group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestStarted(Record):
    """A test is about to be given to its ranks, each of which starts from the same seed.

    Attributes:
        may_disagree: Some of its ranks may skip it alone.
        number: From 1; a further time is in the place of the ones before it, which went wrong.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name

    nodeid: str
    seed: int = 0
    may_disagree: bool = False
    number: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed(Record):
    """A test has simply passed on some ranks.

    Attributes:
        ranks: Which.
        arrived: For each, when its end arrived.
        seconds: For each, how long its phases took together.
        world_size: How many ranks the test has.
    """

    nodeid: str
    ranks: tuple[int, ...]
    arrived: tuple[float, ...]
    seconds: tuple[float, ...]
    world_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseEnd:
    """One phase of one test on one rank: ``setup``, ``call``, ``teardown``, or ``collect`` of a whole module."""

    when: str
    outcome: Outcome
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnded(Record):
    """What one rank came to in a test, if it did not simply pass; of several of one test and rank the first bad counts.

    Attributes:
        arrived: When that arrived at the leading agent.
        phases: The phases that the rank reported.
        phase: The one that decided; empty where the agent saw the end.
        message: One line.
        text: A traceback, stacks, or the reason of a skip.
        caused_by: The rank that went first, where this one was stopped for it.
        consequence: It came of another rank's bad end, or within the grace after it, and decides nothing.
        is_lost: Nobody knows how the rank ended: its node is gone.
        skip_code: torch's exit code, for a skip that has one.
    """

    nodeid: str
    rank: int
    outcome: Outcome
    world_size: int
    arrived: float
    phases: tuple[PhaseEnd, ...] = ()
    phase: str = ""
    message: str = ""
    text: str = ""
    stdout: str = ""
    stderr: str = ""
    caused_by: int | None = None
    consequence: bool = False
    is_lost: bool = False
    skip_kind: SkipKind | None = None
    skip_code: int | None = None

    @property
    def seconds(self) -> float:
        """How long the phases took together."""
        return sum(phase.seconds for phase in self.phases)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftBehind(Record):
    """A process that outlived the rank that had started it, and was killed; no rank where that cannot be told."""

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
class Printed(Record):
    """A line that a rank has printed just now; shown and not kept."""

    rank: int
    line: str


class FailureKind(Enum):
    """What kind of failure keeps an agent from its work: it decides what a person is told to do."""

    BROKEN = "broken"
    CANNOT_IMPORT = "cannot_import"
    OUT_OF_MEMORY = "out_of_memory"
    OTHER_TORCH = "other_torch"
    SUITE = "suite"
    GATE = "gate"
    USAGE = "usage"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentFailed(Record):
    """The agent cannot do its work, or what remains of it."""

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
    """The agent has done all its work: no job without this is good."""

    status: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerEnded(Record):
    """The agent in a container has ended, says whoever keeps the container's files.

    Attributes:
        status: As `subprocess` has it.
        memory_kills: How many processes the kernel has killed for want of memory.
    """

    status: int
    memory_kills: int


_KINDS: Final[Mapping[str, type[Record]]] = {kind.__name__: kind for kind in Record.__subclasses__()}


def encode(record: Record) -> bytes:
    """The line of a record, without its line feed."""
    return dumps([type(record).__name__, told(record)], separators=(",", ":")).encode()


def decode(line: bytes) -> Record:
    """The record of a line.

    Raises:
        RecordError: It is none of this version.
    """
    if len(line) > LINE_LIMIT:
        msg = f"has {len(line)} bytes, and no record has more than {LINE_LIMIT}"
        raise RecordError(msg)
    try:
        value = loads(line)
    except (ValueError, RecursionError) as error:
        msg = "is no JSON"
        raise RecordError(msg) from error
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
        msg = "is no record: a name and an object"
        raise RecordError(msg)
    kind = _KINDS.get(value[0])
    if kind is None:
        msg = f"is of a kind that this version does not know: {value[0][:40]!r}"
        raise RecordError(msg)
    return build(kind, value[1])
