"""Reads a run's folder: the manifest, and the attempts at each job.

A damaged file becomes a sentence in ``problem`` and never prevents reading the rest.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from allranks.protocol.records import JOURNAL
from allranks.protocol.xml_text import clipped, legal, xml_id
from allranks.report.input_rule import ONE_JOB, RECORD, world_size_of
from allranks.report.run_files import SCHEMA, JobRecord, Manifest
from allranks.report.untrusted import digest, head, leads_out, listing, open_regular, other_schema, parsed, special

REPORT_NAME: Final = "allranks"
"""The name of the root element, by which a merged report is recognized."""

_MERGED: Final = re.compile(rf'(<\?xml[^>]*>\s*)?<testsuites name="{REPORT_NAME}"'.encode())
_ATTEMPT: Final = re.compile(r"attempt-([0-9]+)")
_LEADS_OUT: Final = "{} points outside the results folder and was not read."
_T = TypeVar("_T")


class ResultFile(NamedTuple):
    """A file with results: the journal of an attempt, or the XML of one rank."""

    path: Path
    rank: int | None = None  # None for a journal, which has the results of all ranks


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The files of one attempt at a job, or of a job that allranks did not run."""

    cell: str
    suite: str
    files: tuple[ResultFile, ...]
    folder: str = ""  # the folder of the files, relative to the merged folder; empty if allranks did not run the job
    number: int = 0  # 0 if allranks did not run the job
    record: JobRecord | None = None
    problem: str = ""  # why job.json cannot be read
    rejected: tuple[ResultFile, ...] = ()  # files that are not regular, or are outside the results folder
    changed: tuple[Path, ...] = ()  # a journal or rank XML that was changed after allranks wrote it
    earlier: tuple["Attempt", ...] = ()  # the earlier attempts at the same job, oldest first
    other_runs: tuple[str, ...] = ()  # ids of other runs that left results of the same job
    # The number of ranks by source, apart from the files: the cell (its id or the manifest), or an option.
    world_sizes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # sentences on how it was found, without their full stops
    # If this attempt reran a part of the job: the attempt that has the results of the other tests.
    base: "Attempt | None" = None


def has_attempts(folder: Path) -> bool:
    """True if ``cells/`` in a folder has an attempt at a job."""
    jobs = (job for cell in _folders(folder / "cells") for job in _folders(cell))
    return any(_ATTEMPT.fullmatch(path.name) for job in jobs for path in listing(job))


class FoundManifest(NamedTuple):
    """The manifest in a folder, if there is one and it can be read."""

    manifest: Manifest | None = None
    problem: str = ""  # why it cannot be read
    is_foreign: bool = False  # True for a valid file of another program: it states no version of allranks


def read_manifest(root: Path, folder: Path) -> FoundManifest:
    """Read the manifest in a folder, unless it is a link out of ``root``, the merged folder."""
    path = folder / "run.json"
    if leads_out(root, path):
        return FoundManifest(problem=_LEADS_OUT.format(path.name))
    manifest, problem, document = _read_json(path, Manifest)
    is_foreign = document is not None and not (isinstance(document, dict) and "allranks" in document)
    return FoundManifest(manifest, problem, is_foreign)


def read_attempts(root: Path, folder: Path, world_sizes: Mapping[str, int]) -> Iterator[Attempt]:
    """Read every attempt below ``cells/``; links out of ``root``, the merged folder, are not followed."""
    for cell in _folders(folder / "cells"):
        for job in _folders(cell):
            yield from _attempts_at(root, job, world_sizes.get(cell.name))


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder; links are not followed."""
    paths = listing(folder) if folder.is_dir() and not folder.is_symlink() else []
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def read_attempts_at(run: Path, cell: str, suite: str) -> tuple[Attempt, ...]:
    """Read every attempt at one job in a run's folder, in order."""
    root, job = run.resolve(), run.resolve() / "cells" / cell / suite
    return tuple(_attempts_at(root, job, None)) if job.is_dir() else ()


def is_attempt(root: Path, folder: Path) -> bool:
    """True if a folder has the location of an attempt at a job."""
    parts = folder.relative_to(root).parts[-4:]
    return len(parts) == 4 and parts[0] == "cells" and _ATTEMPT.fullmatch(parts[3]) is not None


def _attempts_at(root: Path, job: Path, planned: int | None) -> list[Attempt]:
    found = sorted((int(match[1]), path) for path in listing(job) if (match := _ATTEMPT.fullmatch(path.name)))
    attempts: list[Attempt] = []
    for number, path in found:
        attempts.append(_with_base(_attempt(root, path, number, planned), attempts))
    numbers = [max(attempt.number, attempt.record.attempt if attempt.record else 0) for attempt in attempts]
    missing = next((expected for expected, number in enumerate(numbers, 1) if number > expected), 0)
    if missing and not attempts[-1].problem:
        problem = f"attempt-{missing} is missing, so the tests that failed in it are unknown."
        attempts[-1] = replace(attempts[-1], problem=problem)
    return attempts


def _with_base(attempt: Attempt, before: Sequence[Attempt]) -> Attempt:
    """Link an attempt to the one that it continues, if any."""
    number = attempt.record.continues if attempt.record else 0
    if not number:
        return attempt
    base = next((other for other in before if other.number == number), None)
    if base is None or base.record is None or base.problem:
        why = "is missing" if base is None else f"cannot be read ({base.problem or 'it has no job.json'})"
        problem = f"attempt-{number}, which this attempt continues, {why}, so the tests that passed in it are unknown."
        return replace(attempt, base=base, problem=problem)
    return replace(attempt, base=base)


def newest(attempts: Sequence[Attempt]) -> Attempt:
    """Combine the attempts at one job, given in order, into the newest one with its earlier ones."""
    return replace(attempts[-1], earlier=tuple(attempts[:-1]))


def is_merged_report(path: Path) -> bool:
    """True if allranks wrote this report, so that it may be overwritten and must not be read as results."""
    return _MERGED.match(head(path, 256)) is not None


def _attempt(root: Path, folder: Path, number: int, planned: int | None) -> Attempt:
    record, problem = _record_of(root, folder)
    paths = listing(folder) if folder.is_dir() else []
    rank_paths = ((path, ONE_JOB.match(path.relative_to(folder))) for path in paths)
    ranks = [ResultFile(path, match.rank) for path, match in rank_paths if match]
    journals = [ResultFile(path) for path in paths if path.name == JOURNAL]
    rejected = tuple(file for file in (*journals, *ranks) if is_rejected(root, file.path))
    accepted = [[file for file in kind if file not in rejected] for kind in (journals, ranks)]
    job = folder.parent
    return Attempt(
        cell=xml_id(job.parent.name),
        suite=xml_id(job.name),
        folder=folder.relative_to(root).as_posix(),
        number=number,
        files=tuple(accepted[0] or accepted[1]),  # rank XML is generated from the journal
        record=record,
        problem=problem,
        rejected=rejected,
        changed=tuple(file.path for file in (*journals, *ranks) if record and _is_changed(record, file.path)),
        world_sizes={"the cell": size} if (size := world_size_of(job.parent.name) or planned) else {},
    )


def _is_changed(record: JobRecord, path: Path) -> bool:
    """True if a file was changed after allranks wrote it; an attempt that has not ended has no digests."""
    known = record.rank_files
    return bool(known) and not special(path) and digest(path) != known.get(path.name)


def _record_of(root: Path, folder: Path) -> tuple[JobRecord | None, str]:
    path = folder / RECORD
    if leads_out(root, path):
        return None, _LEADS_OUT.format(path.name)
    if not folder.is_dir():
        return None, f"{folder.name} is {special(folder) or 'a file'}, not the folder of an attempt."
    record, problem, _ = _read_json(path, JobRecord)
    return record, problem


def is_rejected(root: Path, path: Path) -> bool:
    """True if a file is not regular or leads out of ``root``: results are untrusted, and links may lead anywhere."""
    return bool(special(path)) or leads_out(root, path)


def rejection(path: Path) -> str:
    """Why a file is rejected, and what to do."""
    kind = special(path)
    why = f"{path.name} is {kind}, not a regular file, and was not read." if kind else _LEADS_OUT.format(path.name)
    return f"{why}\nReplace it with the file itself."


def _without_duplicates(members: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(members)
    if len(found) < len(members):
        msg = f"one of these keys occurs twice: {clipped(', '.join(name for name, _ in members), 200)}"
        raise ValueError(msg)
    return found


@dataclass(frozen=True)
class _Versioned:
    schema: int


def _read_json(path: Path, kind: type[_T]) -> tuple[_T | None, str, object]:
    """Read a file: the value, or else one sentence on the problem, and the JSON document if it could be parsed."""
    document: object = None
    try:
        with open_regular(path) as file:
            document = json.loads(file.read(), object_pairs_hook=_without_duplicates)
        if (schema := parsed(_Versioned, document).schema) == SCHEMA:
            return parsed(kind, document), "", document
        problem = f"is {other_schema(schema, SCHEMA)}: merge with the version that wrote it"
    except FileNotFoundError:
        if not special(path):
            return None, "", None
        problem = "is a broken link"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        problem = f"is damaged: {legal(str(error))}"
    return None, f"{path.name} {problem}.", document
