"""``run.json`` and ``job.json``: the descriptions of runs and attempts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Self

from allranks.errors import AllranksError, ExitCode
from allranks.protocol.records import MOST_RANKS
from allranks.protocol.repetitions import RepetitionTally
from allranks.protocol.xml_text import xml_id
from allranks.report.judged import Share
from allranks.report.results import SkipPolicy

SCHEMA: Final = 2
"""The schema that this version writes, and the only one that it reads."""

_Id = Annotated[str, xml_id]
_NodeId = Annotated[str, str]
_NodeIds = tuple[_NodeId, ...]


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job in a manifest."""

    id: str = ""
    cell: _Id
    suite: _Id
    image: str = ""
    pytest_args: tuple[str, ...] = ()  # the run's arguments to pytest, which follow those of the suite
    batch: str = ""  # the batch of a plan for several machines that has the job; empty without such a plan

    @property
    def key(self) -> tuple[str, str]:
        """Cell and suite, by which results are found."""
        return self.cell, self.suite


@dataclass(frozen=True, kw_only=True)
class JudgingPolicy:
    """How the results of a run are judged."""

    skip: SkipPolicy | None = None  # the policy of the matrix file; None if it has none
    mixed_skip: tuple[str, ...] = ()  # patterns of tests that some ranks may skip while others run them
    # The expected numbers of executed tests, by cell and suite.
    baseline: Mapping[_Id, Mapping[_Id, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DroppedCells:
    """Cells that a rule of the matrix file drops."""

    rule: str
    reason: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """run.json: the plan of a run."""

    run_id: str
    allranks: str = ""  # the version that started the run
    python: str = ""
    started: str = ""  # in ISO 8601
    host: str = ""  # the name of the machine that started the run
    commit: str = ""  # of the repository, with "-dirty" if tracked files differ from it; empty if unknown
    seed: Annotated[int, range(-(2**63), 2**63)] = 0
    command: str = ""  # the command line, without arguments for pytest
    matrix: str = ""  # the name of the matrix file
    folder: str = ""  # the folder of the matrix file in the repository, which paths of tests are relative to
    policy: JudgingPolicy = field(default_factory=JudgingPolicy)
    dropped: tuple[DroppedCells, ...] = ()
    # The value on each axis, by cell id.
    cells: Mapping[_Id, Mapping[Annotated[str, str], str | int]] = field(default_factory=dict)
    jobs: tuple[PlannedJob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobError:
    """Why a job did not do all its work."""

    kind: str  # a key of the table in :mod:`allranks.report.judge.exit_code`, such as ``timeout`` or ``collection``
    what: str
    why: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """The sentences, one per line."""
        return "\n".join(line for line in (self.what, self.why, self.remedy) if line)

    @classmethod
    def from_exception(cls, error: AllranksError) -> Self:
        """Make the error of a job that failed because of the infrastructure or an invalid request."""
        kind = "usage" if error.exit_code is ExitCode.USAGE else "infrastructure"
        return cls(kind=kind, what=error.what, why=error.why, remedy=error.remedy)


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """job.json: one attempt at a job."""

    id: str = ""
    run_id: str = ""  # the run that it belongs to; empty if the file does not state it
    cell: _Id = ""
    suite: _Id = ""
    attempt: int = 1
    continues: int = 0  # if it reran a part of the job: the number of the attempt that it continues; else 0
    engine: str = ""
    image: str = ""  # of its containers
    spec: Mapping[str, Any] | None = None  # the request to the engine, for people; None if it could not be built
    gpus: tuple[str, ...] = ()
    world_size: Annotated[int, range(1, MOST_RANKS + 1)]
    nodes: Annotated[int, range(1, MOST_RANKS + 1)] = 1
    exit_status: Annotated[int, range(-(2**31), 2**31)] | None = None  # the lead agent's; None if unknown
    error: JobError | None = None
    started: float | None = None  # seconds since the epoch
    finished: float | None = None
    collected: _NodeIds | None = None  # None if the collection never ended
    # The digests of the parameters of all collected tests, including those of other shards or attempts.
    full_collection: Mapping[_NodeId, Annotated[str, str]] = field(default_factory=dict)
    deselected: int = 0
    not_run: _NodeIds = ()  # tests that did not run because the job was stopped, for ``stop_reason``
    stop_reason: str = ""
    notes: tuple[str, ...] = ()  # sentences about the job, without their full stops
    repeated: Mapping[_NodeId, RepetitionTally] = field(default_factory=dict)
    share: Share | None = None  # None if the job had the whole suite
    # Digests of the journal and of the rank XML that was generated from it, by file name.
    rank_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def elapsed(self) -> float | None:
        """Seconds from the job's start to its end; None if the file does not state them."""
        return None if self.started is None or self.finished is None else max(self.finished - self.started, 0.0)

    @property
    def seed(self) -> int | None:
        """The number from which the seeds of its tests are derived; None if the file does not state it."""
        agent = (self.spec or {}).get("agent")
        seed = agent.get("seed") if isinstance(agent, Mapping) else None
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


NO_RECORD: Final = JobRecord(world_size=1)
"""Replaces the record of a job that has none."""


def as_json(document: Manifest | JobRecord) -> dict[str, Any]:
    """The JSON object in the file."""
    return {"schema": SCHEMA, **asdict(document)}
