"""What lies in a run folder: the manifest, the attempts at each job, and the rank XML.

Files only. A damaged one becomes a sentence in ``problem`` and never stops the rest from being read.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from allranks.records import JOURNAL
from allranks.report.judged import Share
from allranks.report.model import SkipPolicy

SCHEMA: Final = 1
"""The newest schema of run.json and job.json that this version reads."""

WIDE_NAME: Final = "allranks"
NARROW_NAME: Final = "allranks: every job"
"""Names of the root elements by which a merged report, in either form, is known for what it is."""

_MARKS: Final = (f'<testsuites name="{WIDE_NAME}"'.encode(), f'<testsuite name="{NARROW_NAME}"'.encode())
_ATTEMPT: Final = re.compile(r"attempt-(\d+)")
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job that the manifest announces.

    Attributes:
        pytest_args: What the run gave to pytest, after what the suite gives.
    """

    cell: str
    suite: str
    image: str = ""
    pytest_args: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        """Cell and suite, by which results are found."""
        return self.cell, self.suite


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """run.json: what was meant to run.

    Attributes:
        cells: For each cell id its value on each axis.
        skip: The policy of the matrix file; None where the user has set none.
        baseline: How many tests executed when all was well, by cell and suite.
    """

    run_id: str = ""
    cells: Mapping[str, Mapping[str, str | int]] = field(default_factory=dict)
    jobs: tuple[PlannedJob, ...] = ()
    skip: SkipPolicy | None = None
    mixed_skip: tuple[str, ...] = ()
    baseline: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobError:
    """Why a job could not do its work, in the words of whoever ran it."""

    kind: str
    what: str
    why: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """The sentences, one a line."""
        return "\n".join(line for line in (self.what, self.why, self.remedy) if line)


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """job.json: how one attempt at a job went.

    Attributes:
        collected: Node ids; None where the collection never ended.
        not_run: Node ids that a stop of the job kept from running, for ``stop_reason``.
        notes: Sentences about the job, without their full stops.
        started: Seconds since the epoch.
        share: None where the job had the whole suite.
        run_id: The run that it is of; empty where the file does not say.
        continues: The number of the attempt that this one goes on with, where it ran a part of the job again; else 0.
    """

    world_size: int
    run_id: str = ""
    engine: str = ""
    image: str = ""
    gpus: tuple[str, ...] = ()
    error: JobError | None = None
    collected: tuple[str, ...] | None = None
    deselected: int = 0
    not_run: frozenset[str] = frozenset()
    stop_reason: str = ""
    notes: tuple[str, ...] = ()
    started: float | None = None
    elapsed: float | None = None
    share: Share | None = None
    continues: int = 0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The files of one attempt at a job, or a folder of rank XML from elsewhere.

    Attributes:
        folder: Where the files are, relative to the folder that is merged; empty where there are no attempts.
        number: None for a folder that has no attempts.
        problem: Why job.json cannot be read; empty where it can, and where there is none.
        strays: Files that would be read if they, or a folder above them, did not lead out of the results folder.
        earlier: The attempts at the same job before this one, the oldest first.
        mixed: Ids of other runs that left results of the same job.
        notes: Sentences on how it was found, without their full stops.
        base: The attempt that this one goes on with: it ran a part of the job again, and the other tests are there.
    """

    cell: str
    suite: str
    files: tuple[Path, ...]
    folder: str = ""
    number: int | None = None
    record: JobRecord | None = None
    problem: str = ""
    strays: tuple[Path, ...] = ()
    earlier: tuple["Attempt", ...] = ()
    mixed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    base: "Attempt | None" = None


def is_manifest(path: Path) -> bool:
    """Whether a file with the name of a manifest looks like one: other programs have a run.json too."""
    try:
        with path.open("rb") as file:
            start = file.read(1024)
            return not start or b'"allranks"' in start
    except OSError:
        return True  # reading it says why that fails


def read_manifest(root: Path, folder: Path) -> tuple[Manifest | None, str]:
    """The manifest of a run folder (None where there is none), and what is wrong with it (empty for nothing).

    Args:
        root: What is merged: files that lead out of it are not read.
        folder: The run's, in it.
    """
    path = folder / "run.json"
    return _read_json(path, _manifest) if _is_within(root, path) else (None, stray_text(path))


def read_attempts(root: Path, folder: Path) -> Iterator[Attempt]:
    """Every attempt at the jobs below ``cells/``, by cell, suite and number; parameters as :func:`read_manifest`."""
    for job in sorted(path for path in (folder / "cells").glob("*/*") if path.is_dir()):
        yield from _attempts_at(root, job)


def read_attempts_at(run: Path, cell: str, suite: str) -> tuple[Attempt, ...]:
    """Every attempt at one job in a run's folder, in order."""
    root, job = run.resolve(), run.resolve() / "cells" / cell / suite
    return tuple(_attempts_at(root, job)) if job.is_dir() else ()


def _attempts_at(root: Path, job: Path) -> Iterable[Attempt]:
    found = {int(match[1]): path for path in job.iterdir() if (match := _ATTEMPT.fullmatch(path.name))}
    attempts: dict[int, Attempt] = {}
    for number in sorted(found):
        attempts[number] = _on_its_base(_attempt(root, job, number, found[number]), attempts)
    return attempts.values()


def _on_its_base(attempt: Attempt, before: Mapping[int, Attempt]) -> Attempt:
    """The attempt with the one that it goes on with, if it goes on with one."""
    number = attempt.record.continues if attempt.record else 0
    if not number:
        return attempt
    base = before.get(number)
    if base is None or base.record is None or base.problem:
        why = "is gone" if base is None else base.problem or "has no job.json"
        said = f"attempt-{number}, with which this attempt goes on, {why}: the tests that passed in it are not known."
        return replace(attempt, base=base, problem=said)
    return replace(attempt, base=base)


def read_foreign(folder: Path) -> tuple[Attempt, ...]:
    """The XML files of a folder that no run of allranks laid out, those of one directory together.

    The directory's name is the suite and what is above it the cell. A file whose name has no rank token is not one of
    several ranks, and stands alone.
    """
    groups: dict[tuple[str, str], dict[int, list[Path]]] = {}
    for path in sorted(folder.rglob("*.xml")):
        if path.is_symlink() or (path.is_file() and not is_merged_report(path)):
            cell, suite, number = _foreign_place(folder, path)
            groups.setdefault((cell, suite), {}).setdefault(number, []).append(path)
    return tuple(
        newest(
            [
                Attempt(
                    cell=cell,
                    suite=suite,
                    number=number or None,
                    files=tuple(path for path in attempts[number] if _is_within(folder, path)),
                    strays=tuple(path for path in attempts[number] if not _is_within(folder, path)),
                )
                for number in sorted(attempts)
            ]
        )
        for (cell, suite), attempts in groups.items()
    )


def newest(attempts: Sequence[Attempt]) -> Attempt:
    """The newest of several attempts at one job, which are in order, with those before it."""
    return replace(attempts[-1], earlier=tuple(attempts[:-1]))


def is_merged_report(path: Path) -> bool:
    """Whether a file is a report that allranks wrote, and may therefore overwrite, and must not read as results."""
    try:
        with path.open("rb") as file:
            start = file.read(256)
            return any(mark in start for mark in _MARKS)
    except OSError:
        return False


def _attempt(root: Path, job: Path, number: int, folder: Path) -> Attempt:
    said = folder / "job.json"
    record, problem = _read_json(said, _job_record) if _is_within(root, said) else (None, stray_text(said))
    files = sorted(path for path in folder.glob("rank-*.xml") if path.is_file() or path.is_symlink())
    if (journal := folder / JOURNAL).is_file():
        files = [journal]  # the rank XML beside it is made of it
    return Attempt(
        cell=job.parent.name,
        suite=job.name,
        folder=folder.relative_to(root).as_posix(),
        number=number,
        files=tuple(path for path in files if _is_within(root, path)),
        record=record,
        problem=problem,
        strays=tuple(path for path in files if not _is_within(root, path)),
    )


def _is_within(root: Path, path: Path) -> bool:
    """Whether a file lies where it seems to: results may come from elsewhere, and a link may lead anywhere."""
    return path.resolve().is_relative_to(root)


def stray_text(path: Path) -> str:
    """What is to be said of a file that is not read because it lies elsewhere."""
    return f"{path.name} leads out of the results folder: it is not read."


def _foreign_place(folder: Path, path: Path) -> tuple[str, str, int]:
    """Cell, suite and attempt (0 for none) of an XML file, from where it lies."""
    parts = list(path.relative_to(folder).parent.parts)
    match = _ATTEMPT.fullmatch(parts[-1]) if parts else None
    if match:
        parts.pop()
    if "rank" not in path.stem.lower():
        parts.append(path.stem)
    cell, suite = parts[:-1], parts[-1:]
    return "/".join(cell) or folder.name, "".join(suite) or "tests", int(match[1]) if match else 0


def _read_json(path: Path, build: Callable[[Mapping[str, Any]], _T]) -> tuple[_T | None, str]:
    """What ``build`` makes of a JSON object in a file, or one sentence that says why there is nothing."""
    try:
        value = json.loads(path.read_bytes())
        if value["schema"] > SCHEMA:
            return None, f"{path.name} was written by a newer allranks (schema {value['schema']}): merge with that one."
        return build(value), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}."
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return None, f"{path.name} is damaged: {type(error).__name__}: {error}."


def _manifest(value: Mapping[str, Any]) -> Manifest:
    policy = value.get("policy") or {}
    return Manifest(
        run_id=str(value["run_id"]),
        cells={str(cell): dict(axes) for cell, axes in value.get("cells", {}).items()},
        jobs=tuple(
            PlannedJob(
                cell=str(job["cell"]),
                suite=str(job["suite"]),
                image=str(job.get("image") or ""),
                pytest_args=_strings(job.get("pytest_args")),
            )
            for job in value["jobs"]
        ),
        skip=policy.get("skip"),
        mixed_skip=_strings(policy.get("mixed_skip")),
        baseline={
            str(cell): {str(suite): int(count) for suite, count in suites.items()}
            for cell, suites in (policy.get("baseline") or {}).items()
        },
    )


def _job_record(value: Mapping[str, Any]) -> JobRecord:
    started, finished = value.get("started"), value.get("finished")
    collected = value.get("collected")
    return JobRecord(
        world_size=int(value["world_size"]),
        run_id=str((value.get("spec") or {}).get("run_id") or ""),
        engine=str(value.get("engine") or ""),
        image=str((value.get("spec") or {}).get("image") or ""),
        gpus=_strings(value.get("gpus")),
        error=_job_error(value.get("error")),
        collected=None if collected is None else _strings(collected),
        deselected=int(value.get("deselected") or 0),
        not_run=frozenset(_strings(value.get("not_run"))),
        stop_reason=str(value.get("stop_reason") or ""),
        notes=_strings(value.get("notes")),
        started=None if started is None else float(started),
        elapsed=None if started is None or finished is None else float(finished) - float(started),
        share=_share(value.get("share")),
        continues=int(value.get("continues") or 0),
    )


def _share(value: Mapping[str, Any] | None) -> Share | None:
    if value is None:
        return None
    return Share(
        suite=str(value["suite"]),
        number=int(value["number"]),
        count=int(value["count"]),
        split=str(value.get("split") or ""),
        elsewhere=int(value.get("elsewhere") or 0),
    )


def _job_error(value: Mapping[str, Any] | None) -> JobError | None:
    if value is None:
        return None
    said = {name: str(value.get(name) or "") for name in ("what", "why", "remedy")}
    return JobError(kind=str(value.get("kind") or "agent"), **said)


def _strings(values: Iterable[object] | None) -> tuple[str, ...]:
    return tuple(str(value) for value in values or ())
