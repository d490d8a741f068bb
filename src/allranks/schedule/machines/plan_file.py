"""The plan file: which machine runs which jobs, checked by each machine before use.

One machine makes it, and all others get a copy. A ``PACK`` on a command line, ``cuda-g4-03of12@0123456789abcdef``,
names a pack and the digest of its plan, so that no machine can run a pack of another plan. As the ``run.json`` of a
gathered folder the file lists the expected jobs, so that a missing machine is noticed.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

import allranks
from allranks.errors import UsageError, did_you_mean, listed
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import plan as plan_jobs
from allranks.matrix.model import Job, Matrix, Suite
from allranks.matrix.when import Condition
from allranks.report.durations import Durations
from allranks.report.run_files import SCHEMA, Manifest, as_json
from allranks.report.untrusted import parsed
from allranks.schedule.machines.packs import Pack
from allranks.schedule.results_folder import RUN_ID_VARIABLE, announced, fresh_manifest

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


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The parts that differ, or that only one of two files has."""
    return [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]


_AGAIN: Final = "Use the plan file of the `allranks plan` that made the pack."
_PACK: Final = re.compile(r"(?P<slug>[^@]+)(@(?P<digest>[0-9a-f]+))?")


@dataclass(frozen=True, kw_only=True)
class PlannedPack:
    """A pack, as a machine reads it from the file."""

    slug: str
    jobs: tuple[str, ...]  # ids of its jobs, in order
    cells: Mapping[str, Mapping[str, Any]]  # the cells of these jobs, each with its value on each axis
    engine: str | None  # their engine; None if unspecified
    limit: float  # seconds until allranks itself ends the run


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, as read from its file."""

    path: Path
    run_id: str  # the run that all packs are parts of
    seed: int  # the seed of every rank of every test on all machines
    pytest_args: tuple[str, ...]
    durations: Durations  # what tests had taken when the plan was made, for the suites that are split
    digest: str
    declaration: Mapping[str, str]  # digests of the parts of the matrix file
    made: tuple[str, str]  # which version of allranks made it, and when
    packs: Mapping[str, PlannedPack]  # by slug
    manifest: Manifest  # the jobs of all packs, as merges read them


def plan_document(  # noqa: PLR0913 - all of them go into one file
    *,
    run_id: str,
    matrix: Matrix,
    facts: Manifest,
    jobs: Sequence[Job],
    packs: Sequence[Pack],
    durations: Durations,
    pytest_args: Sequence[str],
) -> dict[str, Any]:
    """The contents of the file: a manifest, and under ``plan`` the packs."""
    document = as_json(announced(fresh_manifest(run_id, facts, None), jobs, pytest_args))
    for pack in packs:
        for number in pack.jobs:
            document["jobs"][number]["pack"] = pack.slug
    split = {job.suite.name for job in jobs if job.shard}
    document["plan"] = {
        "declaration": declaration_digests(matrix),
        "durations": {suite: durations[suite] for suite in durations if suite in split},
        "packs": [
            {"slug": pack.slug, "engine": pack.rule.engine, "limit": 60 * pack.run_minutes, "jobs": list(pack.jobs)}
            for pack in packs
        ],
    }
    document["plan"]["digest"] = _digest(document)
    return document


def reference(document: Mapping[str, Any], pack: Pack) -> str:
    """The ``PACK`` that names a pack on the command line of its machine."""
    return f"{pack.slug}@{document['plan']['digest']}"


def write_plan(path: Path, document: Mapping[str, Any]) -> None:
    """Write the file atomically.

    Raises:
        UsageError: It cannot be written.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        msg = f"The plan file {path} cannot be written."
        raise UsageError(msg, why=f"{error.strerror or error}.", remedy="Name another one.") from error


def read_plan(path: Path) -> PlanFile:
    """Read a plan file, and check that it is unchanged.

    Raises:
        UsageError: It is no plan file, or has been changed.
    """
    try:
        document = json.loads(path.read_bytes())
        made = (str(document["allranks"]), str(document["started"]))
        if document["schema"] != SCHEMA:
            why = f"It is of schema {document['schema']!r:.20}, and this allranks reads schema {SCHEMA}."
            msg = f"{path} was written by another version of allranks, {made[0]}."
            raise UsageError(msg, why=why, remedy="Use that version here, too.")
        plan, said = _plan_file(path, document, made), _digest(document)
    except OSError as error:
        msg = f"The plan file {path} cannot be read."
        remedy = "Make one: allranks plan --format github --plan-file plan.json"
        raise UsageError(msg, why=f"{error.strerror or error}.", remedy=remedy) from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{path} is not a plan file of allranks, or is damaged."
        raise UsageError(msg, why=f"{type(error).__name__}: {error}.", remedy=_AGAIN) from error
    if said != plan.digest:
        msg = f"{path} has been changed since it was made."
        raise UsageError(msg, why=f"It records the digest {plan.digest}, but its content has {said}.", remedy=_AGAIN)
    return plan


def _plan_file(path: Path, document: Mapping[str, Any], made: tuple[str, str]) -> PlanFile:
    plan, jobs = document["plan"], document["jobs"]
    return PlanFile(
        path=path,
        run_id=str(document["run_id"]),
        seed=int(document["seed"]),
        pytest_args=tuple(jobs[0]["pytest_args"]),
        durations=plan["durations"],
        digest=plan["digest"],
        declaration=plan["declaration"],
        made=made,
        packs={
            pack["slug"]: PlannedPack(
                slug=pack["slug"],
                jobs=tuple(jobs[number]["id"] for number in pack["jobs"]),
                cells={jobs[number]["cell"]: document["cells"][jobs[number]["cell"]] for number in pack["jobs"]},
                engine=pack["engine"],
                limit=float(pack["limit"]),
            )
            for pack in plan["packs"]
        },
        manifest=parsed(Manifest, document),
    )


def _digest(document: Mapping[str, Any]) -> str:
    """A digest of the jobs of each machine, regardless of the time and the run of the plan."""
    plan = {name: value for name, value in document["plan"].items() if name != "digest"}
    return digest([document["allranks"], document["policy"], document["cells"], document["jobs"], plan])


def pack_called(plan: PlanFile, text: str) -> PlannedPack:
    """The pack that a command line names, by its slug, with or without the digest of its plan.

    Raises:
        UsageError: There is none, or it is of another plan.
    """
    found = _PACK.fullmatch(text)
    slug, said = (found["slug"], found["digest"]) if found else (text, None)
    if said and said != plan.digest:
        version, when = plan.made
        what = f"The pack {slug} is of the plan {said}, and {plan.path} is the plan {plan.digest}."
        why = f"That one was made on {when} by allranks {version}, for the run {plan.run_id}: {_contents(plan)}."
        raise UsageError(what, why=why, remedy=_AGAIN)
    if slug not in plan.packs:
        what = f"There is no pack {slug!r} in {plan.path}."
        raise UsageError(what, why=f"It has {_contents(plan)}.", remedy=did_you_mean(slug, plan.packs))
    return plan.packs[slug]


def _contents(plan: PlanFile) -> str:
    jobs = sum(len(pack.jobs) for pack in plan.packs.values())
    return f"{jobs} jobs in {len(plan.packs)} packs"


def _refuse_another_matrix(plan: PlanFile, matrix: Matrix) -> None:
    """Check that this machine has the matrix that was planned, and the same version of allranks.

    Raises:
        UsageError: It has another one; the message names the differences.
    """
    here = allranks.__version__
    if plan.made[0] != here:
        msg = f"{plan.path} was made by allranks {plan.made[0]}, and this is {here}."
        raise UsageError(msg, remedy="Install one version on all machines.")
    if parts := differences(plan.declaration, declaration_digests(matrix)):
        msg = f"{matrix.path.name} is not the matrix file of {plan.path}: they differ in {listed(parts)}."
        why = "Limits may differ by environment variables, too." if "limits" in parts else ""
        raise UsageError(msg, why=why, remedy="Check out the same commit on all machines.")


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """What one machine has to run."""

    plan: PlanFile
    pack: PlannedPack
    jobs: tuple[Job, ...]

    def refuse_others(self, run_id: str | None, pytest_args: Sequence[str]) -> None:
        """Check that the run and arguments that this machine was given, if any, are those of the plan.

        Raises:
            UsageError: They differ: its results would not be the planned ones.
        """
        if run_id and run_id != self.plan.run_id:
            msg = f"{RUN_ID_VARIABLE} is {run_id!r}, and {self.plan.path} plans the run {self.plan.run_id!r}."
            raise UsageError(msg, remedy="Leave it unset where a pack is run: the plan says which run it is of.")
        if pytest_args and tuple(pytest_args) != self.plan.pytest_args:
            planned = shlex.join(self.plan.pytest_args) or "none"
            msg = f"{self.plan.path} plans other arguments for pytest: {planned}."
            raise UsageError(msg, remedy="Give them to `allranks plan`, and none to the runs of its packs.")


def own_part(expansion: Expansion, plan_file: Path, pack_text: str) -> OwnPart:
    """The part of a plan that this machine runs.

    Raises:
        UsageError: There is no such pack, or this machine has another matrix.
    """
    found = read_plan(plan_file)
    pack = pack_called(found, pack_text)
    _refuse_another_matrix(found, expansion.matrix)
    return OwnPart(plan=found, pack=pack, jobs=_jobs(expansion, pack))


def planned_jobs(expansion: Expansion, plan_file: Path) -> tuple[Job, ...]:
    """The jobs of all packs; arguments and errors as of :func:`own_part`."""
    found = read_plan(plan_file)
    _refuse_another_matrix(found, expansion.matrix)
    return tuple(job for pack in found.packs.values() for job in _jobs(expansion, pack))


def _jobs(expansion: Expansion, pack: PlannedPack) -> tuple[Job, ...]:
    """The pack's jobs, as this machine's matrix makes them.

    Raises:
        UsageError: The matrix lacks one of them.
    """
    cells = [expansion.by_id[cell_id] for cell_id in pack.cells if cell_id in expansion.by_id]
    suites = tuple(dict.fromkeys(job_id.partition("/")[2] for job_id in pack.jobs))
    there = {job.id: job for job in plan_jobs(expansion.matrix, cells, suites)}
    if lost := [job_id for job_id in pack.jobs if job_id not in there]:
        msg = f"The pack {pack.slug} has the job {lost[0]}, and {expansion.matrix.path.name} has no such job here."
        raise UsageError(msg, remedy="Check out the same commit on all machines.")
    return tuple(there[job_id] for job_id in pack.jobs)
