"""The content of a run folder: the manifest, the attempts at each job, and the rank XML.

Only files are needed. A damaged file becomes a sentence in ``problem`` and never prevents reading the rest.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from allranks.protocol.records import JOURNAL, MOST_RANKS
from allranks.protocol.xml_text import clipped, legal, xml_id
from allranks.report.archives import has_results, is_archive, plain_head
from allranks.report.rank_names import around, names_a_rank, rank_folder, rank_of, timeless, world_size_of
from allranks.report.run_files import SCHEMA, JobRecord, Manifest
from allranks.report.untrusted import (
    digest,
    head,
    leads_out,
    listing,
    open_regular,
    other_schema,
    parsed,
    special,
    walk,
)

REPORT_NAME: Final = "allranks"
"""The name of the root element, by which a merged report is identified."""

ROOTS: Final = frozenset({"testsuites", "testsuite"})
"""The elements that a JUnit report may begin with."""

_MERGED: Final = re.compile(rf'(<\?xml[^>]*>\s*)?<testsuites name="{REPORT_NAME}"'.encode())
_BEFORE_ROOT: Final = rb"(?:\s|\xef\xbb\xbf|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*>)*+"
_NO_RESULTS: Final = re.compile(_BEFORE_ROOT + rb"<(?:coverage|checkstyle)[\s>]", re.DOTALL)  # Cobertura, Clover
_NODE: Final = re.compile(r"(?:node|host|machine)[-_.]?[0-9]+", re.IGNORECASE)
_ATTEMPT: Final = re.compile(r"attempt-([0-9]+)")
_XML: Final = re.compile(r".*\.xml(\.(gz|bz2|xz|zst|zip))?", re.IGNORECASE | re.DOTALL)  # a compressed one is an error
_RENAMED: Final = re.compile(r"(?!\.)(.*\.xml)[.~].*", re.IGNORECASE)
_PACKED: Final = re.compile(r"(?!\.)(.*rank[-_.]?[0-9][^.]*)\.(zip|7z|tgz|gz|bz2|xz|zst|tar(\.\w+)?)", re.IGNORECASE)
_OF_A_RANK: Final = re.compile(r"(?!\.).*rank[-_.]?[0-9].*", re.IGNORECASE)
_MOST_LINKED: Final = 100
"""Folders that are searched for results below a link: it may lead anywhere."""

_LEADS_OUT: Final = "{} points out of the results folder: it is not read."
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The files of one attempt at a job, or a folder of rank XML from elsewhere."""

    cell: str
    suite: str
    files: tuple[Path, ...]
    folder: str = ""  # the folder of the files, relative to the merged folder; empty if there are no attempts
    number: int | None = None  # None for a folder that has no attempts
    record: JobRecord | None = None
    problem: str = ""  # why job.json cannot be read; empty if it can, or if there is none
    # Files named like rank files that are not read: not regular, outside the results folder, or renamed.
    strays: tuple[Path, ...] = ()
    changed: tuple[Path, ...] = ()  # a journal or rank XML that differs from what allranks wrote
    earlier: tuple["Attempt", ...] = ()  # the attempts at the same job before this one, oldest first
    mixed: tuple[str, ...] = ()  # ids of other runs that left results of the same job
    # From the cell's id or the manifest, without reading the files; None if neither states it.
    world_size: int | None = None
    notes: tuple[str, ...] = ()  # sentences on how it was found, without their full stops
    # The attempt that this one continues: this one reran a part of the job, and that one has the other tests.
    base: "Attempt | None" = None


def is_manifest(path: Path) -> bool:
    """True if a file with a manifest's name looks like one: other programs have a run.json too."""
    start = head(path, 1024)
    return not start or b'"allranks"' in start  # if it cannot be opened, reading it reports why


def read_manifest(root: Path, folder: Path) -> tuple[Manifest | None, str]:
    """The manifest of a run folder (None if there is none), and its problem (empty for none).

    Files that lead out of ``root``, the merged folder, are not read.
    """
    path = folder / "run.json"
    return (
        (None, _LEADS_OUT.format(path.name)) if leads_out(root, path) else _read_json(path, partial(parsed, Manifest))
    )


def read_attempts(root: Path, folder: Path, world_sizes: Mapping[str, int]) -> Iterator[Attempt]:
    """Every attempt at the jobs below ``cells/``, by cell, suite and number.

    Files that lead out of ``root``, the merged folder, are not read.

    Raises:
        OSError: A folder cannot be read.
    """
    for cell in _folders(folder / "cells"):
        for job in _folders(cell):
            yield from _attempts_at(root, job, world_sizes.get(cell.name))


def _folders(folder: Path) -> list[Path]:
    return [path for path in listing(folder) if path.is_dir()] if folder.is_dir() else []


def read_attempts_at(run: Path, cell: str, suite: str) -> tuple[Attempt, ...]:
    """Every attempt at one job in a run's folder, in order."""
    root, job = run.resolve(), run.resolve() / "cells" / cell / suite
    return tuple(_attempts_at(root, job, None)) if job.is_dir() else ()


def is_attempt(root: Path, folder: Path) -> bool:
    """True if a folder has the location of an attempt at a job."""
    place = folder.relative_to(root).parts[-4:]
    return len(place) == 4 and place[0] == "cells" and _ATTEMPT.fullmatch(place[3]) is not None


def is_named_like_a_rank(name: str) -> bool:
    """True if a name has allranks' form for the results of a rank."""
    return fnmatchcase(name, "rank-*.xml")


def is_record(path: Path) -> bool:
    """True if a file is the record of an attempt, or its journal: both count in the attempt's folder alone."""
    return path.name == JOURNAL or (path.name == "job.json" and b'"suite"' in head(path, 1024))


def may_be_result(path: Path) -> bool:
    """True if a file outside of any attempt's folder has results, or is named so."""
    is_report = bool(_XML.fullmatch(path.name)) and _is_junit(path) and not is_merged_report(path)
    return is_report or is_named_like_a_rank(path.name) or is_record(path) or bool(original_of(path))


def is_unread(root: Path, path: Path) -> bool:
    """True if a path has results that are not read: a link out of ``root``, an archive, a report of allranks."""
    if path.is_symlink() and path.is_dir() and "cells" not in path.relative_to(root).parts:  # those are strays
        below = (folder / name for folder, _, names in islice(walk(path), _MOST_LINKED) for name in names)
        with suppress(OSError):  # of a folder there that cannot be read
            return leads_out(root, path) and any(map(may_be_result, below))
    if is_archive(path):
        return has_results(path)
    return bool(_XML.fullmatch(path.name)) and is_merged_report(path)


def original_of(path: Path) -> str:
    """The name of the results that a file is a copy, a draft or a packed form of; empty for none."""
    if match := _PACKED.fullmatch(path.name):
        return f"{match[1]}.xml"
    renamed = _RENAMED.fullmatch(path.name)
    if renamed and _OF_A_RANK.fullmatch(path.name):
        return renamed[1]
    is_odd = not _XML.fullmatch(path.name) and not path.name.startswith(".")
    if not is_odd or not _is_junit(path, b"<") or is_merged_report(path):
        return ""
    return renamed[1] if renamed else f"{path.stem}.xml"


def _is_junit(path: Path, begins: bytes = b"") -> bool:
    """Whether a file looks like JUnit XML; a log, which may have some in a line, begins with something else."""
    start = plain_head(path, 2048)
    return b"<testsuite" in start and start.lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n").startswith(begins)


def _attempts_at(root: Path, job: Path, planned: int | None) -> list[Attempt]:
    found = sorted((int(match[1]), path) for path in listing(job) if (match := _ATTEMPT.fullmatch(path.name)))
    attempts: list[Attempt] = []
    for number, path in found:
        attempts.append(_on_its_base(_attempt(root, path, number, planned), attempts))
    said = [max(each.number or 0, each.record.attempt if each.record else 0) for each in attempts]
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


def read_foreign(folder: Path) -> tuple[Attempt, ...]:
    """The XML files of a folder without allranks' layout, grouped by directory.

    The directory's name is the suite and the path above it the cell. A file whose name has no rank token is not one of
    several ranks, and forms its own group.
    """
    groups: dict[tuple[str, str], dict[int, list[Path]]] = {}
    paths = sorted(_foreign_files(folder))
    nodes = frozenset(_nodes(folder, paths))
    for path in paths:
        cell, suite, number = _foreign_place(folder, path, nodes)
        groups.setdefault((cell, suite), {}).setdefault(number, []).append(path)
    worlds = dict(_worlds(paths))
    return tuple(
        newest([_foreign_attempt(folder, (*place, number), attempts[number], worlds) for number in sorted(attempts)])
        for place, attempts in groups.items()
    )


def _nodes(root: Path, paths: Sequence[Path]) -> Iterator[Path]:
    """The folders of nodes (``node-1``) with the ranks of one job: no two of them have the same rank."""
    found: dict[Path, dict[Path, list[Path]]] = {}
    for path in paths:
        node = next((each for each in path.parents if root in each.parents and _NODE.fullmatch(each.name)), None)
        if node and names_a_rank(path):
            found.setdefault(node.parent, {}).setdefault(node, []).append(path.relative_to(node))
    for nodes in found.values():
        files = [path.with_name(str(rank_of(path))) for own in nodes.values() for path in own]
        if len(files) == len(set(files)):
            yield from nodes


def _worlds(paths: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Each folder with folders of ranks that left files of one name, and the size of their world."""
    found: dict[Path, dict[Path, set[int]]] = {}
    for path in paths:
        if (above := rank_folder(path)) and (rank := rank_of(path)) is not None and rank < MOST_RANKS:
            place = path.with_name(timeless(path.stem)).relative_to(above)
            found.setdefault(around(above), {}).setdefault(place, set()).add(rank)
    for folder, names in found.items():
        ranks = set().union(*names.values())
        if any(len(own) > 1 for own in names.values()):
            yield folder, max(ranks) + (0 in ranks)


def _foreign_files(folder: Path) -> Iterator[Path]:
    for path, folders, others in walk(folder):
        renamed = {name: path / name for name in others if original_of(path / name)}
        found = (path / name for name in (*folders, *others) if _XML.fullmatch(name) and name not in renamed)
        yield from (file for file in found if is_named_like_a_rank(file.name) or not _is_of_other_kind(file))
        yield from renamed.values()


def _is_of_other_kind(path: Path) -> bool:
    """True if an XML file is no result of a test: a report of allranks, or what pytest-cov and linters write beside."""
    return is_merged_report(path) or _NO_RESULTS.match(head(path, 1024)) is not None


def _renamed(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The renamed results of ranks of which the originals are absent, and a note on each other one."""
    there = {path.name for path in paths}
    named = [(path, original) for path in paths if (original := original_of(path))]
    notes = (f"{path.name} was not read, {original} was" for path, original in named if original in there)
    return tuple(path for path, original in named if original not in there), tuple(notes)


def _foreign_attempt(
    root: Path, place: tuple[str, str, int], paths: Sequence[Path], worlds: Mapping[Path, int]
) -> Attempt:
    cell, suite, number = place
    above = rank_folder(paths[0])
    sizes = (*map(world_size_of, reversed(paths[0].parts)), worlds.get(around(above)) if above else None)
    renamed, notes = _renamed(paths)
    named = [path for path in paths if not original_of(path)]
    return Attempt(
        cell=cell,
        suite=suite,
        number=number or None,
        files=tuple(path for path in named if not _is_stray(root, path)),
        strays=(*(path for path in named if _is_stray(root, path)), *renamed),
        notes=notes,
        world_size=next((size for size in sizes if size), None),
    )


def newest(attempts: Sequence[Attempt]) -> Attempt:
    """The newest of several attempts at one job, given in order, with those before it."""
    return replace(attempts[-1], earlier=tuple(attempts[:-1]))


def is_merged_report(path: Path) -> bool:
    """True if allranks wrote this report: it may be overwritten, and must not be read as results."""
    return _MERGED.match(head(path, 256)) is not None


def _attempt(root: Path, folder: Path, number: int, planned: int | None) -> Attempt:
    record, problem = _record_of(root, folder)
    there = listing(folder) if folder.is_dir() else []
    journals = [path for path in there if path.name == JOURNAL]
    ranks = [path for path in there if is_named_like_a_rank(path.name)]
    files = [path for path in journals if not _is_stray(root, path)]
    files = files or [path for path in ranks if not _is_stray(root, path)]  # a journal, if any, is their source
    renamed, notes = ((), ()) if journals else _renamed(there)
    job = folder.parent
    return Attempt(
        cell=xml_id(job.parent.name),
        suite=xml_id(job.name),
        folder=folder.relative_to(root).as_posix(),
        number=number,
        files=tuple(files),
        record=record,
        problem=problem,
        strays=(*(path for path in (*journals, *ranks) if _is_stray(root, path)), *renamed),
        notes=notes,
        changed=tuple(path for path in (*journals, *ranks) if record and _is_changed(record, path)),
        world_size=world_size_of(job.parent.name) or planned,
    )


def _is_changed(record: JobRecord, path: Path) -> bool:
    """True if a file is not the one that allranks wrote; an attempt that has not ended has no digests."""
    known = record.rank_files
    return bool(known) and not special(path) and digest(path) != known.get(path.name)


def _record_of(root: Path, folder: Path) -> tuple[JobRecord | None, str]:
    said = folder / "job.json"
    if leads_out(root, said):
        return None, _LEADS_OUT.format(said.name)
    if not folder.is_dir():
        return None, f"{folder.name} is {special(folder) or 'a file'}, not the folder of an attempt."
    return _read_json(said, lambda document: parsed(JobRecord, document))


def _is_stray(root: Path, path: Path) -> bool:
    """True if a file is not regular or leads out of ``root``: results are untrusted, and links may lead anywhere."""
    return bool(special(path)) or leads_out(root, path)


def stray_text(path: Path) -> str:
    """Why the results of a rank are not read."""
    if kind := special(path):
        return f"{path.name} is {kind}, not a regular file: it is not read."
    if original := original_of(path):
        why = f"{original}, of which it is a copy or a part, is absent."
        return f"{path.name} is not read: {why}\nRestore that file, or its name."
    return _LEADS_OUT.format(path.name)


def _foreign_place(folder: Path, path: Path, nodes: Collection[Path]) -> tuple[str, str, int]:
    """Cell, suite and attempt (0 for none) of an XML file, from its path; the ranks of nodes are of one job."""
    node = next((each for each in path.parents if each in nodes), None)
    whole = node.parent / path.relative_to(node) if node else path
    parts = list(whole.relative_to(folder).parent.parts)
    is_named = names_a_rank(path)
    above = rank_folder(path)
    if above and folder in above.parents:
        parts = [*around(above).relative_to(folder).parts, *path.parent.relative_to(above).parts]
    match = _ATTEMPT.fullmatch(parts[-1]) if parts else None
    if match:
        parts.pop()
    if not is_named:
        name = Path(original_of(path) or path.name).stem
        parts.append(timeless(name) if above else name)
    cell, suite = parts[:-1], parts[-1:]
    number = int(match[1]) if match else 0
    return xml_id("/".join(cell) or folder.name), xml_id("".join(suite) or "tests"), number


def _each_once(members: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(members)
    if len(found) < len(members):
        msg = f"it has a member twice: {clipped(', '.join(name for name, _ in members), 200)}"
        raise ValueError(msg)
    return found


@dataclass(frozen=True)
class _Versioned:
    schema: int


def _read_json(path: Path, build: Callable[[object], _T]) -> tuple[_T | None, str]:
    """The result of ``build`` for the JSON in a file, or one sentence on why there is none."""
    try:
        with open_regular(path) as file:
            document = json.loads(file.read(), object_pairs_hook=_each_once)
        if (schema := parsed(_Versioned, document).schema) != SCHEMA:
            said = f"{path.name} is {other_schema(schema, SCHEMA)}"
            return None, f"{said}: merge with the version that wrote it."
        return build(document), ""
    except FileNotFoundError:
        return (None, f"{path.name} is a broken link.") if special(path) else (None, "")
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}."
    except (ValueError, RecursionError) as error:
        return None, f"{path.name} is damaged: {legal(str(error))}."
