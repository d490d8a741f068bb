"""The plan file, which assigns jobs to machines. Each machine checks it before use.

One machine writes the file, and all others get a copy. ``ALLRANKS_BATCH``, such as
``cuda-g4-03of12@0123456789abcdef``, consists of the slug of a batch and the digest of its plan, so that no machine
runs a batch of another plan. The file also serves as the ``run.json`` of the collected results: it lists the expected
jobs, so that a missing machine is noticed.
All functions raise UsageError for a plan that cannot be used.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import allranks
from allranks.errors import UsageError, counted, did_you_mean, listed
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import plan as plan_jobs
from allranks.matrix.model import Job, Matrix, Suite
from allranks.matrix.when import Condition
from allranks.report.run_files import SCHEMA, Manifest, PlannedJob, as_json
from allranks.report.untrusted import other_schema, parsed
from allranks.runner.durations import Durations
from allranks.runner.machines.batches import Batch
from allranks.runner.results_folder import RUN_ID_VARIABLE
from allranks.user_cache import write_atomically

LENGTH: Final = 16
"""Hexadecimal digits of a digest: it protects against mistakes, not against attacks."""

_NO_DECLARATION: Final = frozenset({"path", "line", "warnings"})


def digest(value: object) -> str:
    """A digest of a value of JSON types."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def declaration_digests(matrix: Matrix) -> dict[str, str]:
    """A digest for each part of the matrix file, such as ``axes``, ``suites.collectives`` and ``limits``.

    It does not depend on comments or line numbers.
    """
    return {name: digest(_plain(value)) for name, value in _parts(matrix)}


def _parts(matrix: Matrix) -> Iterator[tuple[str, object]]:
    for field in fields(matrix):
        value = getattr(matrix, field.name)
        if field.name in {"suites", "images"}:
            yield from ((f"{field.name}.{name}", item) for name, item in value.items())
        elif field.name not in _NO_DECLARATION:
            yield field.name, value


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a declaration in, any JSON value out
    """Convert to JSON types, and mappings to lists, so that the order of entries changes the digest."""
    match value:
        case Condition():
            return value.source
        case Path():
            return value.as_posix()
        case Mapping():
            return [[str(key), _plain(item)] for key, item in value.items()]
        case list() | tuple():
            return [_plain(item) for item in value]
    if isinstance(value, Suite) and value.home:
        value = replace(value, home=Path("allranks"))  # the path of allranks' own suites differs between machines
    if is_dataclass(value):
        return [[field.name, _plain(getattr(value, field.name))] for field in fields(value) if field.name != "line"]
    return value


_RIGHT_FILE: Final = "Use the plan file of the `allranks plan` command that made the batch."


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A batch; the jobs of the manifest refer to it."""

    slug: str
    engine: str | None = None
    limit: int  # the time limit of the run, in seconds


_Name = Annotated[str, str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a plan file contains in addition to the manifest of its run."""

    digest: str = ""
    declaration: Mapping[_Name, str]  # digests of the parts of the matrix file
    # Durations of tests of split suites when the plan was made, by suite, backend and node id.
    durations: Mapping[_Name, Mapping[_Name, Mapping[_Name, float]]]
    batches: tuple[PlannedBatch, ...]


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan file that has been read."""

    path: Path
    manifest: Manifest  # of the run that all batches belong to
    plan: Plan

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """The arguments for pytest, the same on all machines."""
        return next((job.pytest_args for job in self.manifest.jobs), ())

    def jobs_of(self, slug: str | None) -> list[PlannedJob]:
        """The jobs of a batch; None for all batches."""
        return [job for job in self.manifest.jobs if slug in {None, job.batch}]


def plan_document(manifest: Manifest, matrix: Matrix, batches: Sequence[Batch], durations: Durations) -> dict[str, Any]:
    """The contents of the plan file; `batch.jobs` are indexes of the manifest's jobs."""
    slugs = {number: batch.slug for batch in batches for number in batch.jobs}
    jobs = tuple(replace(job, batch=slugs[number]) for number, job in enumerate(manifest.jobs))
    split = {name for name, suite in matrix.suites.items() if suite.shards > 1}
    plan = Plan(
        declaration=declaration_digests(matrix),
        durations={suite: durations[suite] for suite in durations if suite in split},
        batches=tuple(
            PlannedBatch(slug=batch.slug, engine=batch.rule.engine, limit=60 * batch.run_minutes) for batch in batches
        ),
    )
    document = {**as_json(replace(manifest, jobs=jobs)), "plan": asdict(plan)}
    document["plan"]["digest"] = _digest(document)
    return document


def reference(document: Mapping[str, Any], batch: Batch) -> str:
    """The ``ALLRANKS_BATCH`` of a batch's machine."""
    return f"{batch.slug}@{document['plan']['digest']}"


def write_plan(path: Path, document: Mapping[str, Any]) -> None:
    """Write the file atomically."""
    try:
        write_atomically(path, json.dumps(document, separators=(",", ":")) + "\n")
    except OSError as error:
        msg = f"The plan file {path} cannot be written."
        raise UsageError(msg, why=f"{error.strerror or error}.", remedy="Choose another path.") from error


def read_plan(path: Path) -> PlanFile:
    """Read a plan file, and check that it is unchanged."""
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            why = f"It is {other_schema(document['schema'], SCHEMA)}."
            msg = f"{path} was written by another version of allranks, {document['allranks']}."
            raise UsageError(msg, why=why, remedy="Use that version here, too.")
        file = PlanFile(path=path, manifest=parsed(Manifest, document), plan=parsed(Plan, document["plan"], "plan"))
        recorded, actual = file.plan.digest, _digest(document)
    except OSError as error:
        msg = f"The plan file {path} cannot be read."
        remedy = "Write one: allranks plan --format github --plan-file plan.json"
        raise UsageError(msg, why=f"{error.strerror or error}.", remedy=remedy) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        msg = f"{path} is not a plan file of allranks, or is damaged."
        raise UsageError(msg, why=f"{type(error).__name__}: {error}.", remedy=_RIGHT_FILE) from error
    if recorded != actual:
        msg = f"{path} has been changed since it was written."
        raise UsageError(
            msg, why=f"It records the digest {recorded}, but its content has {actual}.", remedy=_RIGHT_FILE
        )
    return file


def _digest(document: Mapping[str, Any]) -> str:
    """A digest of the plan that does not depend on its time and its run id."""
    plan = {name: value for name, value in document["plan"].items() if name != "digest"}
    return digest([document["allranks"], document["policy"], document["cells"], document["jobs"], plan])


def find_batch(file: PlanFile, text: str) -> PlannedBatch:
    """The batch that a text names: its slug alone, or ``SLUG@DIGEST`` with the digest of the plan."""
    slug, at, plan_digest = text.partition("@")
    batches = {batch.slug: batch for batch in file.plan.batches}
    contents = f"{counted(len(file.manifest.jobs), 'job')} in {counted(len(batches), 'batch', 'batches')}"
    if at and plan_digest != file.plan.digest:
        plan = file.manifest
        what = f"The batch {slug} belongs to the plan {plan_digest}, but {file.path} is the plan {file.plan.digest}."
        why = f"It was written on {plan.started} by allranks {plan.allranks}, for the run {plan.run_id}: {contents}."
        raise UsageError(what, why=why, remedy=_RIGHT_FILE)
    if slug not in batches:
        what = f"There is no batch {slug!r} in {file.path}."
        raise UsageError(what, why=f"It has {contents}.", remedy=did_you_mean(slug, batches))
    return batches[slug]


def _check_same_matrix(file: PlanFile, matrix: Matrix) -> None:
    """Check that this machine has the planned matrix and the same version of allranks."""
    here = allranks.__version__
    if file.manifest.allranks != here:
        msg = f"{file.path} was written by allranks {file.manifest.allranks}, but this is {here}."
        raise UsageError(msg, remedy="Install the same version on all machines.")
    planned, own = file.plan.declaration, declaration_digests(matrix)
    if parts := [name for name in {**planned, **own} if planned.get(name) != own.get(name)]:
        msg = f"{matrix.path.name} is not the matrix file of {file.path}: they differ in {listed(parts)}."
        why = "Environment variables also change limits." if "limits" in parts else ""
        raise UsageError(msg, why=why, remedy="Check out the same commit on all machines.")


@dataclass(frozen=True, kw_only=True)
class PlanPart:
    """The part of a plan that one machine runs."""

    file: PlanFile
    batch: PlannedBatch
    jobs: tuple[Job, ...]

    @property
    def gpus(self) -> int:
        """How many GPUs this machine must have: as many as the job that needs the most."""
        return max(job.cell.gpu_count for job in self.jobs)

    def check_request(self, run_id: str | None, pytest_args: Sequence[str]) -> None:
        """Check that a requested run id and requested arguments, if any, are those of the plan."""
        path, planned = self.file.path, self.file.manifest.run_id
        if run_id and run_id != planned:
            msg = f"{RUN_ID_VARIABLE} is {run_id!r}, but {path} is a plan of the run {planned!r}."
            raise UsageError(msg, remedy=f"Unset {RUN_ID_VARIABLE}: the plan determines the run.")
        if pytest_args and tuple(pytest_args) != self.file.pytest_args:
            msg = f"{path} has other arguments for pytest: {shlex.join(self.file.pytest_args) or 'none'}."
            raise UsageError(msg, remedy="Pass arguments to `allranks plan`, not to the runs of its batches.")


def load_part(expansion: Expansion, plan_file: Path, batch_text: str) -> PlanPart:
    """The part of a plan that this machine runs."""
    file = read_plan(plan_file)
    batch = find_batch(file, batch_text)
    return PlanPart(file=file, batch=batch, jobs=_jobs(expansion, file, batch.slug))


def planned_jobs(expansion: Expansion, plan_file: Path) -> tuple[Job, ...]:
    """The jobs of all batches."""
    return _jobs(expansion, read_plan(plan_file), None)


def _jobs(expansion: Expansion, file: PlanFile, slug: str | None) -> tuple[Job, ...]:
    """The jobs of a batch, or of all batches, from this machine's matrix."""
    _check_same_matrix(file, expansion.matrix)
    planned = file.jobs_of(slug)
    cells = [expansion.by_id[name] for name in dict.fromkeys(job.cell for job in planned) if name in expansion.by_id]
    suites = tuple(dict.fromkeys(job.suite for job in planned))
    available = {job.id: job for job in plan_jobs(expansion.matrix, cells, suites)}
    if missing := [job.id for job in planned if job.id not in available]:
        msg = f"The job {missing[0]} of {file.path} does not exist in {expansion.matrix.path.name}."
        raise UsageError(msg, remedy="Check out the same commit on all machines.")
    return tuple(available[job.id] for job in planned)
