"""The runs below a folder: one, the parts of one, or loose XML; duplicates are counted once.

A part is a folder with a ``run.json`` or with ``cells/``, at any depth. Parts of one run have its id; their plans are
combined, and of the attempts at one job, from any part, the newest counts.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from math import inf
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from allranks.protocol.records import MOST_RANKS
from allranks.report.folder import (
    Attempt,
    is_attempt,
    is_manifest,
    is_merged_report,
    is_record,
    is_unread,
    may_be_result,
    newest,
    read_attempts,
    read_foreign,
    read_manifest,
)
from allranks.report.results import RankFile
from allranks.report.run_files import Manifest, PlannedJob
from allranks.report.untrusted import walk

T = TypeVar("T")

_REPORT: Final = re.compile(r"junit(-[0-9]+)?\.xml")
"""The names of a merged report's own files."""

_NO_PLAN: Final = "no run.json came with these results, so a job that left none is not missed"

TELLING: Final = 3
"""Distinct durations that identify a job: no two runs take the same milliseconds."""


def told_apart(items: Sequence[T], is_copy: Callable[[T, T], bool]) -> tuple[list[T], list[tuple[T, T]]]:
    """The items without duplicates of those before them, and each duplicate with its original."""
    kept: list[T] = []
    copies: list[tuple[T, T]] = []
    for item in items:
        same = next((other for other in kept if is_copy(item, other)), None)
        if same is None:
            kept.append(item)
        else:
            copies.append((item, same))
    return kept, copies


def without_copies(files: Sequence[RankFile]) -> tuple[list[RankFile], tuple[str, ...]]:
    """The files without those that have exactly the same content as another, and a note on each one left out."""
    kept, copies = told_apart(files, _is_same_file)
    notes = (f"{file.path.name} duplicates {same.path.name}, and is counted once" for file, same in copies)
    return kept, tuple(notes)


def _is_same_file(one: RankFile, other: RankFile) -> bool:
    same_rank = one.rank == other.rank and one.rank is not None
    return (
        same_rank
        and one.seconds == other.seconds
        and one.keys == other.keys
        and (one.details, one.problem) == (other.details, other.problem)
    )


def contradictions(files: Sequence[RankFile]) -> Iterator[tuple[int, str]]:
    """An error for each rank that several files with different content claim to be."""
    by_rank: dict[int, list[str]] = {}
    for file in files:
        if file.rank is not None:
            by_rank.setdefault(file.rank, []).append(file.path.name)
    for rank, names in by_rank.items():
        if len(names) > 1:
            text = f"{' and '.join(names)} are both of rank {rank}, and differ: the worse outcome of each test counts."
            yield rank, f"{text}\nKeep one of them in the folder."


class CopyWatch:
    """Detects jobs, and XML of ranks, whose results were already seen under another name."""

    def __init__(self) -> None:
        self._seen: dict[bytes, str] = {}

    def notes_on(self, attempt: Attempt, files: Sequence[RankFile]) -> tuple[str, ...]:
        """The notes on a job: none, unless it is a duplicate."""
        place = f"{attempt.cell} / {attempt.suite}"
        telling = [file for file in files if len({*file.seconds}) >= TELLING]
        first = self._seen.setdefault(_digest(files), place) if files[:1] == telling[:1] else place
        twice = () if first == place else (f"has the same results as {first}, as if these had been gathered twice",)
        named = [(file.path, file.seconds.tobytes()) for file in telling if "allranks.rank" not in file.properties]
        by_times = {times: path for path, times in reversed(named)}
        pairs = ((path, by_times[times]) for path, times in named)
        copies = (
            f"{path.name} has the times of {same.name}, as if it were a copy" for path, same in pairs if path != same
        )
        return (*twice, *copies)


def _digest(files: Sequence[RankFile]) -> bytes:
    digest = blake2b(digest_size=16)
    for file in sorted(files, key=lambda file: file.rank or 0):
        digest.update(file.seconds.tobytes())
    return digest.digest()


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The input to judge."""

    run_id: str  # the run that the results should belong to
    manifest: Manifest | None  # the combined plan of the parts; None if none of them has one
    plans: tuple[frozenset[tuple[str, str]], ...]
    problems: tuple[str, ...]  # why a plan cannot be read, or contradicts the others; a sentence or a few for each
    attempts: tuple[Attempt, ...]  # the newest attempt of each job, by cell and suite

    @property
    def is_own(self) -> bool:
        """True if any of it states the run that it belongs to."""
        return self.manifest is not None or any(found.record and found.record.run_id for found in self.attempts)


def gather(root: Path) -> Gathered:
    """The results below a folder, given as a resolved path."""
    parts, loose, unread = _parts(root)
    said = [(part.relative_to(root) / "run.json", *read_manifest(root, part)) for part in parts]
    plans = [_Plan(place.as_posix(), manifest) for place, manifest, _ in said if manifest]
    problems = [_located(place, problem) for place, _, problem in said if problem]
    sizes = _world_sizes(plan.manifest for plan in plans)
    attempts = [
        _Found(number, attempt) for number, part in enumerate(parts) for attempt in read_attempts(root, part, sizes)
    ]
    run_id = _run_of(root, plans, [found.attempt for found in attempts])
    counted = tuple(_newest_of_each(attempts, run_id)) if attempts or plans else read_foreign(root)
    if attempts and not plans and not problems:
        counted = (replace(counted[0], notes=(*counted[0].notes, _NO_PLAN)), *counted[1:])
    return Gathered(
        run_id=run_id,
        manifest=_together([plan.manifest for plan in plans], run_id) if plans else None,
        plans=tuple(frozenset(job.place for job in plan.manifest.jobs) for plan in plans),
        problems=(
            *problems,
            *_disagreements(plans),
            *_nobodys(root, loose if attempts or plans else list(filter(is_record, loose))),
            *_not_read(root, unread, [*parts, *(path for each in counted for path in each.files)]),
        ),
        attempts=counted,
    )


def _world_sizes(manifests: Iterable[Manifest]) -> dict[str, int]:
    """The number of ranks of each cell, as far as a plan states it."""
    said = {cell: axes.get("world_size") for manifest in manifests for cell, axes in manifest.cells.items()}
    return {cell: size for cell, size in said.items() if isinstance(size, int) and 0 < size <= MOST_RANKS}


def _located(place: Path, problem: str) -> str:
    """A plan's problem, with the part that it is in; none for the folder's own plan."""
    return problem if place.parent == Path() else f"In {place.parent.as_posix()}: {problem}"


class _Plan(NamedTuple):
    """The plan of a part."""

    file: str  # its ``run.json``, relative to the merged folder
    manifest: Manifest


class _Found(NamedTuple):
    """An attempt, and the number of the part that it is in."""

    part: int
    attempt: Attempt


def _parts(root: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The folders of runs, parents first, the results that are in no attempt, and those in a form that is not read.

    Raises:
        OSError: A folder cannot be read: its content could go missing unnoticed.
    """
    parts: list[Path] = []
    loose: list[Path] = []
    unread: list[Path] = []
    for path, folders, others in walk(root):
        has_plan = "run.json" in (*folders, *others) and (path == root or is_manifest(path / "run.json"))
        if has_plan or (path / "cells").is_dir():
            parts.append(path)
        loose.extend(path / name for name in sorted((*folders, *others)) if may_be_result(path / name))
        unread.extend(path / name for name in others if name[0] != "." and is_unread(root, path / name))
        folders[:] = [name for name in folders if not name.startswith(".") and not is_attempt(root, path / name)]
    return parts, loose, unread


def _not_read(root: Path, unread: Sequence[Path], read: Sequence[Path]) -> Iterator[str]:
    """A problem with each result in a form that is not read, unless what it was made from is beside or below it."""
    all_read = frozenset(read)
    above = {root, *read, *(folder for path in read for folder in path.parents)}
    for path in unread:
        if path in all_read:  # the file of a rank, whatever its root element says
            continue
        place = path.relative_to(root)
        is_usual = _REPORT.fullmatch(path.name) and (path.parent in above or not all_read.isdisjoint(path.parents))
        if not (is_merged_report(path) and (is_usual or "test-reports" in place.parts)):
            yield (
                f"{place.as_posix()} has results, and is a link, an archive or a report of allranks: "
                "it was not read.\nPut the results themselves there: unpacked, and with cells/ of each machine whole."
            )


def _nobodys(root: Path, loose: Sequence[Path]) -> Iterator[str]:
    """Problems with results outside any job of a run: they have been moved, and would be lost."""
    if loose:
        places = ", ".join(path.relative_to(root).as_posix() for path in loose[:3])
        yield (
            f"{places}{f' and {len(loose) - 3} more' if len(loose) > 3 else ''}: results "
            "outside any job's folder, so they were not read.\n"
            "Keep the folder cells/ of each machine whole when you gather them, or merge these on their own."
        )


def _run_of(root: Path, plans: Sequence[_Plan], attempts: Iterable[Attempt]) -> str:
    """The run that the results should belong to: the folder's own, else that of most results."""
    if plans and plans[0].file == "run.json":
        return plans[0].manifest.run_id
    ids = [attempt.record.run_id for attempt in attempts if attempt.record and attempt.record.run_id]
    ids = ids or [plan.manifest.run_id for plan in plans]
    counts = Counter(ids)
    return max(counts, key=lambda run_id: (counts[run_id], run_id), default=root.name)


def _together(manifests: Sequence[Manifest], run_id: str) -> Manifest:
    """One plan from all, with the names of all their machines; where they disagree, the first counts."""
    jobs: dict[tuple[str, str], PlannedJob] = {}
    for job in chain.from_iterable(manifest.jobs for manifest in manifests):
        jobs.setdefault(job.place, job)
    return replace(
        manifests[0],
        run_id=run_id,
        host=", ".join(dict.fromkeys(manifest.host for manifest in manifests if manifest.host)),
        cells={cell: axes for manifest in reversed(manifests) for cell, axes in manifest.cells.items()},
        jobs=tuple(jobs.values()),
        policy=replace(manifests[0].policy, baseline=_most([manifest.policy.baseline for manifest in manifests])),
    )


def _most(baselines: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    most: dict[str, dict[str, int]] = {}
    for baseline in baselines:
        for cell, suites in baseline.items():
            for suite, count in suites.items():
                counts = most.setdefault(cell, {})
                counts[suite] = max(count, counts.get(suite, 0))
    return most


def _disagreements(plans: Sequence[_Plan]) -> Iterator[str]:
    """Contradictions between parts of one run: they ran with different matrix files."""
    for plan in plans[1:]:
        if _rules(plan.manifest) != _rules(plans[0].manifest):
            yield (
                f"{plan.file} and {plans[0].file} have different policies: they come from different matrix files.\n"
                f"The policy of {plans[0].file} was applied. Run all parts from one commit."
            )


def _rules(manifest: Manifest) -> tuple[object, ...]:
    return manifest.policy.skip, manifest.policy.mixed_skip


def _newest_of_each(attempts: Iterable[_Found], run_id: str) -> Iterator[Attempt]:
    by_job: dict[tuple[str, str], list[_Found]] = {}
    for found in attempts:
        by_job.setdefault((found.attempt.cell, found.attempt.suite), []).append(found)
    for place in sorted(by_job):
        yield _newest(by_job[place], run_id)


def _newest(attempts: Sequence[_Found], run_id: str) -> Attempt:
    """The attempt that counts, with those before it; attempts of another run do not count for this one."""
    own = [found for found in attempts if _is_of(found.attempt, run_id)] or attempts
    others = {found.attempt.record.run_id for found in attempts if found.attempt.record and found not in own}
    own, copies = _without_copies(own)
    ordered = [found.attempt for found in own] if len({found.part for found in own}) == 1 else _in_time(own)
    counts = newest(ordered)
    before = (f"In {each.folder}: {each.problem}" for each in reversed(counts.earlier) if each.problem)
    problem = counts.problem or next(before, "")  # what failed in an earlier one may not be known
    return replace(counts, mixed=tuple(sorted(others)), notes=(*counts.notes, *copies), problem=problem)


def _is_of(attempt: Attempt, run_id: str) -> bool:
    return attempt.record is None or attempt.record.run_id in {"", run_id}


def _in_time(attempts: Sequence[_Found]) -> list[Attempt]:
    """Attempts of several machines, each of which counts from 1, ordered by start time and renumbered.

    An attempt without a start time follows the one before it on its machine. If there is none before it, a later good
    attempt cannot be proved, so it counts as the newest.
    """
    began: dict[int, float] = {}
    times: list[float] = []
    for part, attempt in attempts:
        said = attempt.record.started if attempt.record else None
        began[part] = began.get(part, inf) if said is None else said
        times.append(began[part])
    ordered = sorted(range(len(attempts)), key=lambda place: (times[place], place))
    numbers = {attempts[place].attempt.folder: number for number, place in enumerate(ordered, 1)}
    return [_renumbered(attempts[place].attempt, numbers) for place in ordered]


def _renumbered(attempt: Attempt, numbers: Mapping[str, int]) -> Attempt:
    base = _renumbered(attempt.base, numbers) if attempt.base else None
    return replace(attempt, number=numbers.get(attempt.folder, attempt.number), base=base)


def _without_copies(attempts: Sequence[_Found]) -> tuple[list[_Found], tuple[str, ...]]:
    """The attempts without duplicates, and a note on each duplicate."""
    kept, copies = told_apart(attempts, _is_same_attempt)
    notes = (f"{one.attempt.folder} is a copy of {same.attempt.folder}, and is counted once" for one, same in copies)
    return kept, tuple(notes)


def _is_same_attempt(found: _Found, other_found: _Found) -> bool:
    one, other = found.attempt, other_found.attempt
    same_record = one.record is not None and one.record.started is not None and one.record == other.record
    names = [[path.name for path in attempt.files] for attempt in (one, other)]
    return same_record and one.number == other.number and names[0] == names[1]
