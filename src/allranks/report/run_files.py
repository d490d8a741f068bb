"""``run.json`` and ``job.json``: how runs and attempts describe themselves to reports.

The files of schema 1 lack some of the fields, and read alike.
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
"""Of the files that this version writes, and the newest that it reads."""

_MOST_SHARES: Final = 1_000  # as many as a matrix file may ask for


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job that a manifest announces.

    Attributes:
        image: The name of its image in the matrix file.
        pytest_args: What the run gave to pytest, after what the suite gives.
    """

    id: str = ""
    cell: str
    suite: str
    image: str = ""
    pytest_args: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        """Cell and suite, by which results are found."""
        return self.cell, self.suite


@dataclass(frozen=True, kw_only=True)
class JudgingPolicy:
    """How the results of a run are judged.

    Attributes:
        skip: The policy of the matrix file; None where the user has set none.
        mixed_skip: Patterns of tests that some ranks may skip alone.
        baseline: How many tests executed when all was well, by cell and suite.
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
    """run.json: what was meant to run.

    Attributes:
        allranks: The version that began the run.
        started: When it began, in ISO 8601.
        seed: What every rank of every test starts from.
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
        """A manifest out of JSON.

        Raises:
            ValueError: A field is missing, or is not what it should be.
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
        """The sentences, one a line."""
        return "\n".join(line for line in (self.what, self.why, self.remedy) if line)

    @classmethod
    def from_exception(cls, error: AllranksError) -> Self:
        """A failure of the engine's, or of anything else that a job needs."""
        return cls(kind="infrastructure", what=error.what, why=error.why, remedy=error.remedy)


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """job.json: how one attempt at a job went.

    Attributes:
        run_id: The run that it is of; empty where the file does not say.
        continues: The number of the attempt that this one goes on with, where it ran a part of the job again; else 0.
        image: The image that its containers were of; empty where there were none.
        spec: What the engine was asked for, for people; None where that could not be made.
        exit_status: The leading agent's; None where nobody knows.
        started: Seconds since the epoch.
        collected: Node ids; None where the collection never ended.
        not_run: Node ids that a stop of the job kept from running, for ``stop_reason``.
        notes: Sentences about the job, without their full stops.
        share: None where the job had the whole suite.
        rank_files: Digests of the rank XML that was made of the journal, by file name.
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
        """Seconds from its turn to its end; None where the file does not say."""
        return None if self.started is None or self.finished is None else max(self.finished - self.started, 0.0)

    @classmethod
    def read(cls, said: Fields) -> Self:
        """A record out of JSON.

        Raises:
            ValueError: A field is missing, or is not what it should be.
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
    """What stands in the file."""
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
