"""The content of a run's folder: the manifest, and the attempts at each job.

Only files are needed. A damaged file becomes a sentence in ``problem`` and never prevents reading the rest.
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
"""The name of the root element, by which a merged report is identified."""

_MERGED: Final = re.compile(rf'(<\?xml[^>]*>\s*)?<testsuites name="{REPORT_NAME}"'.encode())
_ATTEMPT: Final = re.compile(r"attempt-([0-9]+)")
_LEADS_OUT: Final = "{} points out of the results folder: it is not read."
_T = TypeVar("_T")


class ResultFile(NamedTuple):
    """A file with results: the journal of an attempt, or the XML of one rank."""

    path: Path
    rank: int | None = None  # None for a journal, which has all ranks


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The files of one attempt at a job, or a job's rank XML from elsewhere."""

    cell: str
    suite: str
    files: tuple[ResultFile, ...]
    folder: str = ""  # the folder of the files, relative to the merged folder; empty for XML from elsewhere
    number: int = 0  # 0 for XML from elsewhere
    record: JobRecord | None = None
    problem: str = ""  # why job.json cannot be read; empty if it can, or if there is none
    strays: tuple[ResultFile, ...] = ()  # those that are not read: not regular, or outside the results folder
    changed: tuple[Path, ...] = ()  # a journal or rank XML that differs from what allranks wrote
    earlier: tuple["Attempt", ...] = ()  # the attempts at the same job before this one, oldest first
    mixed: tuple[str, ...] = ()  # ids of other runs that left results of the same job
    # The number of ranks, by who states it apart from the files: the cell (its id or the manifest), or an option.
    world_sizes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # sentences on how it was found, without their full stops
    # The attempt that this one continues: this one reran a part of the job, and that one has the other tests.
    base: "Attempt | None" = None


def has_attempts(folder: Path) -> bool:
    """True if ``cells/`` in a folder has an attempt at a job."""
    jobs = (job for cell in _folders(folder / "cells") for job in _folders(cell))
    return any(_ATTEMPT.fullmatch(path.name) for job in jobs for path in listing(job))


class FoundManifest(NamedTuple):
    """What there is of a manifest in a folder."""

    manifest: Manifest | None = None  # None if there is none, or if it cannot be read
    problem: str = ""  # why it cannot be read; empty if it can, or if there is none
    is_foreign: bool = False  # True for the whole file of another program: it states no version of allranks


def read_manifest(root: Path, folder: Path) -> FoundManifest:
    """The manifest of a run folder; one that leads out of ``root``, the merged folder, is not read."""
    path = folder / "run.json"
    if leads_out(root, path):
        return FoundManifest(problem=_LEADS_OUT.format(path.name))
    manifest, problem, document = _read_json(path, Manifest)
    is_foreign = document is not None and not (isinstance(document, dict) and "allranks" in document)
    return FoundManifest(manifest, problem, is_foreign)


def read_attempts(root: Path, folder: Path, world_sizes: Mapping[str, int]) -> Iterator[Attempt]:
    """Every attempt at the jobs below ``cells/``; files that lead out of ``root``, the merged folder, are not read."""
    for cell in _folders(folder / "cells"):
        for job in _folders(cell):
            yield from _attempts_at(root, job, world_sizes.get(cell.name))


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder; links are not followed."""
    there = listing(folder) if folder.is_dir() and not folder.is_symlink() else []
    return [path for path in there if path.is_dir() and not path.is_symlink()]


def read_attempts_at(run: Path, cell: str, suite: str) -> tuple[Attempt, ...]:
    """Every attempt at one job in a run's folder, in order."""
    root, job = run.resolve(), run.resolve() / "cells" / cell / suite
    return tuple(_attempts_at(root, job, None)) if job.is_dir() else ()


def is_attempt(root: Path, folder: Path) -> bool:
    """True if a folder has the location of an attempt at a job."""
    place = folder.relative_to(root).parts[-4:]
    return len(place) == 4 and place[0] == "cells" and _ATTEMPT.fullmatch(place[3]) is not None


def _attempts_at(root: Path, job: Path, planned: int | None) -> list[Attempt]:
    found = sorted((int(match[1]), path) for path in listing(job) if (match := _ATTEMPT.fullmatch(path.name)))
    attempts: list[Attempt] = []
    for number, path in found:
        attempts.append(_on_its_base(_attempt(root, path, number, planned), attempts))
    said = [max(each.number, each.record.attempt if each.record else 0) for each in attempts]
    lost = next((place for place, number in enumerate(said, 1) if number > place), 0)
    if lost and not attempts[-1].problem:
        problem = f"attempt-{lost} is gone: the tests that failed in it are not known."
        attempts[-1] = replace(attempts[-1], problem=problem)
    return attempts


def _on_its_base(attempt: Attempt, before: Sequence[Attempt]) -> Attempt:
    """The attempt, linked to the one that it continues, if any."""
    number = attempt.record.continues if attempt.record else 0
    if not number:
        return attempt
    base = next((other for other in before if other.number == number), None)
    if base is None or base.record is None or base.problem:
        why = "is gone" if base is None else base.problem or "has no job.json"
        said = f"attempt-{number}, which this attempt continues, {why}: the tests that passed in it are not known."
        return replace(attempt, base=base, problem=said)
    return replace(attempt, base=base)


def newest(attempts: Sequence[Attempt]) -> Attempt:
    """The newest of several attempts at one job, given in order, with those before it."""
    return replace(attempts[-1], earlier=tuple(attempts[:-1]))


def is_merged_report(path: Path) -> bool:
    """True if allranks wrote this report: it may be overwritten, and must not be read as results."""
    return _MERGED.match(head(path, 256)) is not None


def _attempt(root: Path, folder: Path, number: int, planned: int | None) -> Attempt:
    record, problem = _record_of(root, folder)
    there = listing(folder) if folder.is_dir() else []
    places = ((path, ONE_JOB.place(path.relative_to(folder))) for path in there)
    ranks = [ResultFile(path, place.rank) for path, place in places if place]
    journals = [ResultFile(path) for path in there if path.name == JOURNAL]
    strays = tuple(file for file in (*journals, *ranks) if is_stray(root, file.path))
    read = [[file for file in kind if file not in strays] for kind in (journals, ranks)]
    job = folder.parent
    return Attempt(
        cell=xml_id(job.parent.name),
        suite=xml_id(job.name),
        folder=folder.relative_to(root).as_posix(),
        number=number,
        files=tuple(read[0] or read[1]),  # a journal, if any, is the source of the rank XML
        record=record,
        problem=problem,
        strays=strays,
        changed=tuple(file.path for file in (*journals, *ranks) if record and _is_changed(record, file.path)),
        world_sizes={"the cell": size} if (size := world_size_of(job.parent.name) or planned) else {},
    )


def _is_changed(record: JobRecord, path: Path) -> bool:
    """True if a file is not the one that allranks wrote; an attempt that has not ended has no digests."""
    known = record.rank_files
    return bool(known) and not special(path) and digest(path) != known.get(path.name)


def _record_of(root: Path, folder: Path) -> tuple[JobRecord | None, str]:
    said = folder / RECORD
    if leads_out(root, said):
        return None, _LEADS_OUT.format(said.name)
    if not folder.is_dir():
        return None, f"{folder.name} is {special(folder) or 'a file'}, not the folder of an attempt."
    record, problem, _ = _read_json(said, JobRecord)
    return record, problem


def is_stray(root: Path, path: Path) -> bool:
    """True if a file is not regular or leads out of ``root``: results are untrusted, and links may lead anywhere."""
    return bool(special(path)) or leads_out(root, path)


def stray_text(path: Path) -> str:
    """Why the results of a rank are not read, and what to do."""
    kind = special(path)
    why = f"{path.name} is {kind}, not a regular file: it is not read." if kind else _LEADS_OUT.format(path.name)
    return f"{why}\nPut the file itself there."


def _each_once(members: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(members)
    if len(found) < len(members):
        msg = f"it has a member twice: {clipped(', '.join(name for name, _ in members), 200)}"
        raise ValueError(msg)
    return found


@dataclass(frozen=True)
class _Versioned:
    schema: int


def _read_json(path: Path, kind: type[_T]) -> tuple[_T | None, str, object]:
    """The value in a file, or one sentence on why there is none, and the JSON in it; None if it is not whole."""
    document: object = None
    try:
        with open_regular(path) as file:
            document = json.loads(file.read(), object_pairs_hook=_each_once)
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
