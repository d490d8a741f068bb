"""What lies below a folder: one run, the parts of one from several machines, or XML that no run of allranks laid out.

A part is a folder with a ``run.json`` or with ``cells/``, at whatever depth. Parts of one run have its id; what they
plan is added up, and of the attempts at one job, wherever they come from, the newest counts.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import NamedTuple

from allranks.report.copies import told_apart
from allranks.report.folder import Attempt, Manifest, is_manifest, newest, read_attempts, read_foreign, read_manifest


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """All that is to be judged.

    Attributes:
        run_id: The run that the results should be of.
        manifest: What the parts planned, together; None where none of them says.
        plans: The jobs of each plan, by cell and suite.
        problems: Why a plan cannot be read, or does not go with the others; a sentence or a few for each.
        attempts: The newest attempt of each job, by cell and suite.
    """

    run_id: str
    manifest: Manifest | None
    plans: tuple[frozenset[tuple[str, str]], ...]
    problems: tuple[str, ...]
    attempts: tuple[Attempt, ...]


def gather(root: Path) -> Gathered:
    """The results below a folder, which is a resolved path."""
    parts = list(_parts(root))
    said = [_Said(_shown(root, part), *read_manifest(root, part)) for part in parts]
    attempts = [_Found(number, attempt) for number, part in enumerate(parts) for attempt in read_attempts(root, part)]
    run_id = _run_of(root, said, [found.attempt for found in attempts])
    problems = [f"In {part.place}: {part.problem}" if part.place else part.problem for part in said if part.problem]
    known = [part for part in said if part.manifest]
    return Gathered(
        run_id=run_id,
        manifest=_together([part.manifest for part in known if part.manifest], run_id) if known else None,
        plans=tuple(frozenset((job.cell, job.suite) for job in part.manifest.jobs) for part in known if part.manifest),
        problems=(*problems, *_disagreements(known)),
        attempts=tuple(_newest_of_each(attempts, run_id)) if attempts or known else read_foreign(root),
    )


class _Said(NamedTuple):
    """A part's plan."""

    place: str
    manifest: Manifest | None
    problem: str


class _Found(NamedTuple):
    """An attempt, and the number of the part that it is in."""

    part: int
    attempt: Attempt


def _parts(root: Path) -> Iterator[Path]:
    """The folders of runs, those above first; no link is followed.

    Raises:
        OSError: A folder cannot be read: what is in it might be missed by nobody.
    """
    for path, folders, files in os.walk(root, onerror=_raise):
        if "cells" in folders or ("run.json" in files and (path == str(root) or is_manifest(Path(path, "run.json")))):
            yield Path(path)
        folders[:] = sorted(name for name in folders if name != "cells" and not name.startswith("."))


def _raise(error: OSError) -> None:
    raise error


def _shown(root: Path, part: Path) -> str:
    return "" if part == root else part.relative_to(root).as_posix()


def _run_of(root: Path, said: Sequence[_Said], attempts: Iterable[Attempt]) -> str:
    """The run that the results should be of: what the folder itself says, else what most of them say."""
    if said and not said[0].place and said[0].manifest:
        return said[0].manifest.run_id
    ids = [attempt.record.run_id for attempt in attempts if attempt.record and attempt.record.run_id]
    ids = ids or [part.manifest.run_id for part in said if part.manifest]
    counts = Counter(ids)
    return max(counts, key=lambda run_id: (counts[run_id], run_id), default=root.name)


def _together(manifests: Sequence[Manifest], run_id: str) -> Manifest:
    """One plan for all; where they disagree, the first counts."""
    jobs = {(job.cell, job.suite): job for manifest in reversed(manifests) for job in manifest.jobs}
    places = dict.fromkeys((job.cell, job.suite) for manifest in manifests for job in manifest.jobs)
    return Manifest(
        run_id=run_id,
        cells={cell: axes for manifest in reversed(manifests) for cell, axes in manifest.cells.items()},
        jobs=tuple(jobs[place] for place in places),
        skip=next((manifest.skip for manifest in manifests if manifest.skip), None),
        mixed_skip=tuple(dict.fromkeys(chain.from_iterable(manifest.mixed_skip for manifest in manifests))),
        baseline=_most([manifest.baseline for manifest in manifests]),
    )


def _most(baselines: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    most: dict[str, dict[str, int]] = {}
    for baseline in baselines:
        for cell, suites in baseline.items():
            for suite, count in suites.items():
                counts = most.setdefault(cell, {})
                counts[suite] = max(count, counts.get(suite, 0))
    return most


def _disagreements(known: Sequence[_Said]) -> Iterator[str]:
    """What parts of one run cannot both say: they ran with different matrix files."""
    for part in known[1:]:
        first = known[0]
        if part.manifest and first.manifest and _rules(part.manifest) != _rules(first.manifest):
            yield (
                f"{part.place}/run.json and {_file_of(first)} have different policies: they are of different matrix "
                f"files.\nThat of {_file_of(first)} was applied. Run all parts from one commit."
            )


def _file_of(part: _Said) -> str:
    return f"{part.place}/run.json" if part.place else "run.json"


def _rules(manifest: Manifest) -> tuple[object, ...]:
    return manifest.skip, manifest.mixed_skip


def _newest_of_each(attempts: Iterable[_Found], run_id: str) -> Iterator[Attempt]:
    by_job: dict[tuple[str, str], list[_Found]] = {}
    for found in attempts:
        by_job.setdefault((found.attempt.cell, found.attempt.suite), []).append(found)
    for place in sorted(by_job):
        yield _newest(by_job[place], run_id)


def _newest(attempts: Sequence[_Found], run_id: str) -> Attempt:
    """The attempt that counts, with those before it; attempts of another run are none at this one."""
    own = [found for found in attempts if _is_of(found.attempt, run_id)] or attempts
    others = {found.attempt.record.run_id for found in attempts if found.attempt.record and found not in own}
    own, copies = _without_copies(own)
    ordered = [found.attempt for found in own] if len({found.part for found in own}) == 1 else _in_time(own)
    return replace(newest(ordered), mixed=tuple(sorted(others)), notes=copies)


def _is_of(attempt: Attempt, run_id: str) -> bool:
    return attempt.record is None or attempt.record.run_id in {"", run_id}


def _in_time(attempts: Sequence[_Found]) -> list[Attempt]:
    """Attempts of several machines, each of which counts from 1, by when they began, and numbered anew.

    One that does not say when came after the one before it on its machine; where there is none, nobody knows that a
    good one came after it, and it is the newest.
    """
    began: dict[int, float] = {}
    times: list[float] = []
    for part, attempt in attempts:
        said = attempt.record.started if attempt.record else None
        began[part] = began.get(part, inf) if said is None else said
        times.append(began[part])
    ordered = sorted(range(len(attempts)), key=lambda place: (times[place], place))
    return [replace(attempts[place].attempt, number=number) for number, place in enumerate(ordered, 1)]


def _without_copies(attempts: Sequence[_Found]) -> tuple[list[_Found], tuple[str, ...]]:
    """The attempts, those that were gathered twice once, and a note on each of these."""
    kept, copies = told_apart(attempts, _is_copy)
    notes = (f"{one.attempt.folder} is a copy of {same.attempt.folder}, and counts once" for one, same in copies)
    return kept, tuple(notes)


def _is_copy(found: _Found, other_found: _Found) -> bool:
    one, other = found.attempt, other_found.attempt
    same_record = one.record is not None and one.record.started is not None and one.record == other.record
    names = [[path.name for path in attempt.files] for attempt in (one, other)]
    return same_record and one.number == other.number and names[0] == names[1]
