"""The plan file: which machine runs which jobs, checked by each machine before use.

One machine makes it, and all others get a copy. A ``PACK`` on a command line, ``cuda-g4-03of12@0123456789abcdef``,
names a pack and the digest of its plan, so that no machine can run a pack of another plan. As the ``run.json`` of a
gathered folder the file lists the expected jobs, so that a missing machine is noticed. A plan that cannot be used here
is a UsageError.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import allranks
from allranks.errors import UsageError, did_you_mean, listed
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import plan as plan_jobs
from allranks.matrix.model import Job, Matrix, Suite
from allranks.matrix.when import Condition
from allranks.report.run_files import SCHEMA, Manifest, PlannedJob, as_json
from allranks.report.untrusted import other_schema, parsed
from allranks.runner.durations import Durations
from allranks.runner.machines.packs import Pack
from allranks.runner.results_folder import RUN_ID_VARIABLE

LENGTH: Final = 16
"""Hexadecimal digits of a digest: enough unless two plans with the same one are constructed on purpose."""

_NO_DECLARATION: Final = frozenset({"path", "line", "warnings"})


def digest(value: object) -> str:
    """A digest of a value made of JSON's types."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def declaration_digests(matrix: Matrix) -> dict[str, str]:
    """A digest for each part of the file, by its name: ``axes``, ``suites.collectives``, ``limits``.

    Comments, and positions in the file, do not count.
    """
    return {name: digest(_plain(value)) for name, value in _parts(matrix)}


def _parts(matrix: Matrix) -> Iterator[tuple[str, object]]:
    for field in fields(matrix):
        value = getattr(matrix, field.name)
        if field.name in {"suites", "images"}:
            yield from ((f"{field.name}.{name}", each) for name, each in value.items())
        elif field.name not in _NO_DECLARATION:
            yield field.name, value


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a declaration in, any JSON value out
    match value:
        case Condition():
            return value.source
        case Path():
            return value.as_posix()
        case Mapping():
            # In order: which suite comes first is part of what is declared.
            return [[str(key), _plain(item)] for key, item in value.items()]
        case list() | tuple():
            return [_plain(item) for item in value]
    if isinstance(value, Suite) and value.home:
        value = replace(value, home=Path("allranks"))  # each machine has these suites in a place of its own
    if is_dataclass(value):
        return [[each.name, _plain(getattr(value, each.name))] for each in fields(value) if each.name != "line"]
    return value


_AGAIN: Final = "Use the plan file of the `allranks plan` that made the pack."


@dataclass(frozen=True, kw_only=True)
class PlannedPack:
    """A pack; its jobs are those of the manifest that name it."""

    slug: str
    engine: str | None = None  # of its jobs; None if unspecified
    limit: int  # seconds until allranks itself ends the run


_Name = Annotated[str, str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The additions of a plan file to the manifest of its run."""

    digest: str = ""
    declaration: Mapping[_Name, str]  # digests of the parts of the matrix file
    # Durations of tests when the plan was made, for the suites that are split: by suite, backend and node id.
    durations: Mapping[_Name, Mapping[_Name, Mapping[_Name, float]]]
    packs: tuple[PlannedPack, ...]


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, as read from its file."""

    path: Path
    manifest: Manifest  # the run that all packs are parts of, as merges read it
    plan: Plan

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """The arguments to pytest on all machines."""
        return next((job.pytest_args for job in self.manifest.jobs), ())

    def jobs_of(self, slug: str | None) -> list[PlannedJob]:
        """The jobs of a pack, or of all packs."""
        return [job for job in self.manifest.jobs if slug in {None, job.pack}]


def plan_document(manifest: Manifest, matrix: Matrix, packs: Sequence[Pack], durations: Durations) -> dict[str, Any]:
    """The contents of the file; packs name jobs by their places in the manifest."""
    slugs = {number: pack.slug for pack in packs for number in pack.jobs}
    jobs = tuple(replace(job, pack=slugs[number]) for number, job in enumerate(manifest.jobs))
    split = {name for name, suite in matrix.suites.items() if suite.shards > 1}
    plan = Plan(
        declaration=declaration_digests(matrix),
        durations={suite: durations[suite] for suite in durations if suite in split},
        packs=tuple(
            PlannedPack(slug=pack.slug, engine=pack.rule.engine, limit=60 * pack.run_minutes) for pack in packs
        ),
    )
    document = {**as_json(replace(manifest, jobs=jobs)), "plan": asdict(plan)}
    document["plan"]["digest"] = _digest(document)
    return document


def reference(document: Mapping[str, Any], pack: Pack) -> str:
    """The ``PACK`` that names a pack on the command line of its machine."""
    return f"{pack.slug}@{document['plan']['digest']}"


def write_plan(path: Path, document: Mapping[str, Any]) -> None:
    """Write the file atomically."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        msg = f"The plan file {path} cannot be written."
        raise UsageError(msg, why=f"{error.strerror or error}.", remedy="Name another one.") from error


def read_plan(path: Path) -> PlanFile:
    """Read a plan file, and check that it is unchanged."""
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            why = f"It is {other_schema(document['schema'], SCHEMA)}."
            msg = f"{path} was written by another version of allranks, {document['allranks']}."
            raise UsageError(msg, why=why, remedy="Use that version here, too.")
        found = PlanFile(path=path, manifest=parsed(Manifest, document), plan=parsed(Plan, document["plan"], "plan"))
        said, digest_here = found.plan.digest, _digest(document)
    except OSError as error:
        msg = f"The plan file {path} cannot be read."
        remedy = "Make one: allranks plan --format github --plan-file plan.json"
        raise UsageError(msg, why=f"{error.strerror or error}.", remedy=remedy) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        msg = f"{path} is not a plan file of allranks, or is damaged."
        raise UsageError(msg, why=f"{type(error).__name__}: {error}.", remedy=_AGAIN) from error
    if said != digest_here:
        msg = f"{path} has been changed since it was made."
        raise UsageError(msg, why=f"It records the digest {said}, but its content has {digest_here}.", remedy=_AGAIN)
    return found


def _digest(document: Mapping[str, Any]) -> str:
    """A digest of the jobs of each machine, regardless of the time and the run of the plan."""
    plan = {name: value for name, value in document["plan"].items() if name != "digest"}
    return digest([document["allranks"], document["policy"], document["cells"], document["jobs"], plan])


def pack_called(found: PlanFile, text: str) -> PlannedPack:
    """The pack that a command line names, by its slug, with or without the digest of its plan."""
    slug, at, said = text.partition("@")
    packs = {pack.slug: pack for pack in found.plan.packs}
    contents = f"{len(found.manifest.jobs)} jobs in {len(packs)} packs"
    if at and said != found.plan.digest:
        made = found.manifest
        what = f"The pack {slug} is of the plan {said}, and {found.path} is the plan {found.plan.digest}."
        why = f"That one was made on {made.started} by allranks {made.allranks}, for the run {made.run_id}: {contents}."
        raise UsageError(what, why=why, remedy=_AGAIN)
    if slug not in packs:
        what = f"There is no pack {slug!r} in {found.path}."
        raise UsageError(what, why=f"It has {contents}.", remedy=did_you_mean(slug, packs))
    return packs[slug]


def _refuse_another_matrix(found: PlanFile, matrix: Matrix) -> None:
    """Check that this machine has the matrix that was planned, and the same version of allranks."""
    here = allranks.__version__
    if found.manifest.allranks != here:
        msg = f"{found.path} was made by allranks {found.manifest.allranks}, and this is {here}."
        raise UsageError(msg, remedy="Install one version on all machines.")
    planned, own = found.plan.declaration, declaration_digests(matrix)
    if parts := [name for name in {**planned, **own} if planned.get(name) != own.get(name)]:
        msg = f"{matrix.path.name} is not the matrix file of {found.path}: they differ in {listed(parts)}."
        why = "Limits may differ by environment variables, too." if "limits" in parts else ""
        raise UsageError(msg, why=why, remedy="Check out the same commit on all machines.")


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """What one machine has to run."""

    file: PlanFile
    pack: PlannedPack
    jobs: tuple[Job, ...]

    @property
    def gpus(self) -> int:
        """How many GPUs this machine must have, since the plan has chosen it for jobs that need them."""
        return max(job.cell.gpu_count for job in self.jobs)

    def refuse_others(self, run_id: str | None, pytest_args: Sequence[str]) -> None:
        """Check that the run and arguments that this machine was given, if any, are those of the plan."""
        path, planned = self.file.path, self.file.manifest.run_id
        if run_id and run_id != planned:
            msg = f"{RUN_ID_VARIABLE} is {run_id!r}, and {path} plans the run {planned!r}."
            raise UsageError(msg, remedy="Leave it unset where a pack is run: the plan says which run it is of.")
        if pytest_args and tuple(pytest_args) != self.file.pytest_args:
            msg = f"{path} plans other arguments for pytest: {shlex.join(self.file.pytest_args) or 'none'}."
            raise UsageError(msg, remedy="Give them to `allranks plan`, and none to the runs of its packs.")


def own_part(expansion: Expansion, plan_file: Path, pack_text: str) -> OwnPart:
    """The part of a plan that this machine runs."""
    found = read_plan(plan_file)
    pack = pack_called(found, pack_text)
    return OwnPart(file=found, pack=pack, jobs=_jobs(expansion, found, pack.slug))


def planned_jobs(expansion: Expansion, plan_file: Path) -> tuple[Job, ...]:
    """The jobs of all packs; arguments and errors as of :func:`own_part`."""
    return _jobs(expansion, read_plan(plan_file), None)


def _jobs(expansion: Expansion, found: PlanFile, slug: str | None) -> tuple[Job, ...]:
    """The jobs of a pack, or of all packs, as this machine's matrix makes them."""
    _refuse_another_matrix(found, expansion.matrix)
    planned = found.jobs_of(slug)
    cells = [expansion.by_id[name] for name in dict.fromkeys(job.cell for job in planned) if name in expansion.by_id]
    suites = tuple(dict.fromkeys(job.suite for job in planned))
    there = {job.id: job for job in plan_jobs(expansion.matrix, cells, suites)}
    if lost := [job.id for job in planned if job.id not in there]:
        msg = f"{found.path} has the job {lost[0]}, and {expansion.matrix.path.name} has no such job here."
        raise UsageError(msg, remedy="Check out the same commit on all machines.")
    return tuple(there[job.id] for job in planned)
