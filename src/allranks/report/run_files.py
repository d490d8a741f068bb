"""``run.json`` and ``job.json``: how runs and attempts describe themselves to reports.

Files of schema 1 lack some of the fields and are read in the same way.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self, cast

from allranks.errors import AllranksError
from allranks.records import MOST_RANKS
from allranks.report.judged import Share
from allranks.report.results import SkipPolicy
from allranks.report.untrusted import Fields
from allranks.xml_text import xml_id

SCHEMA: Final = 2
"""The schema that this version writes, and the newest that it reads."""

_MOST_SHARES: Final = 1_000  # the limit of a matrix file


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job that a manifest announces.

    Attributes:
        image: The name of its image in the matrix file.
        pytest_args: The run's arguments to pytest, which follow those of the suite.
    """

    id: str = ""
    cell: str
    suite: str
    image: str = ""
    pytest_args: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        """Cell and suite, the key of its results."""
        return self.cell, self.suite


@dataclass(frozen=True, kw_only=True)
class JudgingPolicy:
    """How the results of a run are judged.

    Attributes:
        skip: The policy of the matrix file; None if the user has set none.
        mixed_skip: Patterns of tests that some ranks may skip while others run them.
        baseline: The number of tests executed in a good run, by cell and suite.
    """

    skip: SkipPolicy | None = None
    mixed_skip: tuple[str, ...] = ()
    baseline: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DroppedCells:
    """Cells that a rule of the matrix file has dropped."""

    rule: str
    reason: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """run.json: the plan of a run.

    Attributes:
        allranks: The version that began the run.
        started: When it began, in ISO 8601.
        seed: The seed of every rank of every test.
        command: The command line.
        matrix: The name of the matrix file.
        cells: For each cell id its value on each axis.
    """

    run_id: str = ""
    allranks: str = ""
    python: str = ""
    started: str = ""
    seed: int = 0
    command: str = ""
    matrix: str = ""
    policy: JudgingPolicy = field(default_factory=JudgingPolicy)
    dropped: tuple[DroppedCells, ...] = ()
    cells: Mapping[str, Mapping[str, str | int]] = field(default_factory=dict)
    jobs: tuple[PlannedJob, ...] = ()

    @classmethod
    def read(cls, said: Fields) -> Self:
        """Parse a manifest from JSON.

        Raises:
            ValueError: A field is missing or invalid.
        """
        cells = said.fields("cells")
        return cls(
            run_id=said.text("run_id", None),
            allranks=said.text("allranks"),
            python=said.text("python"),
            started=said.text("started"),
            seed=said.whole("seed", least=-(2**63), most=2**63),
            command=said.text("command"),
            matrix=said.text("matrix"),
            policy=_policy(said.fields("policy")),
            dropped=tuple(
                DroppedCells(rule=each.text("rule"), reason=each.text("reason"), count=each.whole("count"))
                for each in said.objects("dropped")
            ),
            cells={
                xml_id(cell): {axis: cells.fields(cell).scalar(axis) for axis in cells.fields(cell)} for cell in cells
            },
            jobs=tuple(map(_planned_job, said.objects("jobs"))),
        )


@dataclass(frozen=True, kw_only=True)
class JobError:
    """Why a job did not do all its work.

    Attributes:
        kind: ``infrastructure``, ``timeout``, ``interrupted``, ``stopped``, ``collection`` or ``agent``.
    """

    kind: str
    what: str
    why: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """The sentences, one per line."""
        return "\n".join(line for line in (self.what, self.why, self.remedy) if line)

    @classmethod
    def from_exception(cls, error: AllranksError) -> Self:
        """A failure of the engine, or of anything else that a job needs."""
        return cls(kind="infrastructure", what=error.what, why=error.why, remedy=error.remedy)


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """job.json: the course of one attempt at a job.

    Attributes:
        run_id: The run that it belongs to; empty if the file does not state it.
        continues: The number of the attempt that this one continues, if it reran a part of the job; else 0.
        image: The image of its containers; empty if there were none.
        spec: The request to the engine, for people; None if it could not be built.
        exit_status: The leading agent's; None if unknown.
        started: Seconds since the epoch.
        collected: Node ids; None if the collection never ended.
        not_run: Node ids that did not run because the job was stopped, for ``stop_reason``.
        notes: Sentences about the job, without their full stops.
        share: None if the job had the whole suite.
        rank_files: Digests of the rank XML that was generated from the journal, by file name.
    """

    id: str = ""
    run_id: str = ""
    cell: str = ""
    suite: str = ""
    attempt: int = 1
    continues: int = 0
    engine: str = ""
    image: str = ""
    spec: Mapping[str, Any] | None = None
    gpus: tuple[str, ...] = ()
    world_size: int
    nodes: int = 1
    exit_status: int | None = None
    error: JobError | None = None
    started: float | None = None
    finished: float | None = None
    collected: tuple[str, ...] | None = None
    deselected: int = 0
    not_run: tuple[str, ...] = ()
    stop_reason: str = ""
    notes: tuple[str, ...] = ()
    share: Share | None = None
    rank_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def elapsed(self) -> float | None:
        """Seconds from its turn to its end; None if the file does not state them."""
        return None if self.started is None or self.finished is None else max(self.finished - self.started, 0.0)

    @property
    def seed(self) -> int | None:
        """The number that the seeds of its tests derive from; None if the file does not state it."""
        agent = (self.spec or {}).get("agent")
        seed = agent.get("seed") if isinstance(agent, Mapping) else None
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @classmethod
    def read(cls, said: Fields) -> Self:
        """Parse a record from JSON.

        Raises:
            ValueError: A field is missing or invalid.
        """
        spec = said.fields("spec")
        return cls(
            id=said.text("id"),
            run_id=said.text("run_id") or spec.text("run_id"),
            cell=said.text("cell"),
            suite=said.text("suite"),
            attempt=said.whole("attempt", 1),
            continues=said.whole("continues"),
            engine=said.text("engine"),
            image=said.text("image") or spec.text("image"),
            spec=spec.raw if said.has("spec") else None,
            gpus=said.texts("gpus"),
            world_size=said.whole("world_size", None, least=1, most=MOST_RANKS),
            nodes=said.whole("nodes", 1),
            exit_status=said.whole("exit_status", None, least=-(2**31), most=2**31)
            if said.has("exit_status")
            else None,
            error=_job_error(said.fields("error")) if said.has("error") else None,
            started=said.moment("started"),
            finished=said.moment("finished"),
            collected=said.raw_texts("collected") if said.has("collected") else None,
            deselected=said.whole("deselected"),
            not_run=said.raw_texts("not_run"),
            stop_reason=said.text("stop_reason"),
            notes=said.texts("notes"),
            share=_share(said.fields("share")) if said.has("share") else None,
            rank_files={name: files.text(name) for files in [said.fields("rank_files")] for name in files},
        )


def as_json(document: Manifest | JobRecord) -> dict[str, Any]:
    """The content of the file."""
    return {"schema": SCHEMA, **asdict(document)}


def _policy(said: Fields) -> JudgingPolicy:
    baseline, skip = said.fields("baseline"), said.choice("skip", ("skip", "pass"))
    return JudgingPolicy(
        skip=cast("SkipPolicy", skip) if skip else None,
        mixed_skip=said.texts("mixed_skip"),
        baseline={
            xml_id(cell): {xml_id(suite): suites.whole(suite) for suite in suites}
            for cell in baseline
            for suites in [baseline.fields(cell)]
        },
    )


def _planned_job(said: Fields) -> PlannedJob:
    return PlannedJob(
        id=said.text("id"),
        cell=xml_id(said.text("cell", None)),
        suite=xml_id(said.text("suite", None)),
        image=said.text("image"),
        pytest_args=said.texts("pytest_args"),
    )


def _share(said: Fields) -> Share:
    count = said.whole("count", None, least=1, most=_MOST_SHARES)
    return Share(
        suite=xml_id(said.text("suite", None)),
        number=said.whole("number", None, least=1, most=count),
        count=count,
        split=said.text("split"),
        elsewhere=said.whole("elsewhere"),
    )


def _job_error(said: Fields) -> JobError:
    return JobError(
        kind=said.text("kind") or "agent", what=said.text("what"), why=said.text("why"), remedy=said.text("remedy")
    )
