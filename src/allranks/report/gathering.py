"""What lies below a folder: one run, the parts of one from several machines, or XML that no run of allranks laid out.

A part is a folder with a ``run.json`` or with ``cells/``, at whatever depth. Parts of one run have its id; what they
plan is added up, and of the attempts at one job, wherever they come from, the newest counts.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from allranks.report.folder import Attempt, Manifest, is_manifest, newest, read_attempts, read_foreign, read_manifest


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """All that is to be judged.

    Attributes:
        run_id: The run that the results should be of.
        manifest: What the parts planned, together; None where none of them says.
        problems: Why a plan cannot be read, or does not go with the others; a sentence or a few for each.
        attempts: The newest attempt of each job, by cell and suite.
    """

    run_id: str
    manifest: Manifest | None
    problems: tuple[str, ...]
    attempts: tuple[Attempt, ...]


def gather(root: Path) -> Gathered:
    """The results below a folder, which is a resolved path."""
    parts = list(_parts(root))
    said = [_Said(_shown(root, part), *read_manifest(root, part)) for part in parts]
    attempts = [attempt for part in parts for attempt in read_attempts(root, part)]
    run_id = _run_of(root, said, attempts)
    problems = [f"In {part.place}: {part.problem}" if part.place else part.problem for part in said if part.problem]
    known = [part for part in said if part.manifest]
    return Gathered(
        run_id=run_id,
        manifest=_together([part.manifest for part in known if part.manifest], run_id) if known else None,
        problems=(*problems, *_disagreements(known)),
        attempts=tuple(_newest_of_each(attempts, run_id)) if attempts or known else read_foreign(root),
    )


class _Said(NamedTuple):
    """A part's plan."""

    place: str
    manifest: Manifest | None
    problem: str


def _parts(root: Path) -> Iterator[Path]:
    """The folders of runs, those above first; no link is followed."""
    for path, folders, files in os.walk(root):
        if "cells" in folders or ("run.json" in files and (path == str(root) or is_manifest(Path(path, "run.json")))):
            yield Path(path)
        folders[:] = sorted(name for name in folders if name != "cells" and not name.startswith("."))


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


def _newest_of_each(attempts: Iterable[Attempt], run_id: str) -> Iterator[Attempt]:
    by_job: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in attempts:
        by_job.setdefault((attempt.cell, attempt.suite), []).append(attempt)
    for place in sorted(by_job):
        yield _newest(by_job[place], run_id)


def _newest(attempts: Sequence[Attempt], run_id: str) -> Attempt:
    """The attempt that counts, with those before it; attempts of another run are none at this one."""
    own = [attempt for attempt in attempts if _is_of(attempt, run_id)] or attempts
    others = {attempt.record.run_id for attempt in attempts if attempt.record and attempt not in own}
    own, copies = _without_copies(own)
    if len({attempt.number for attempt in own}) == len(own):
        ordered = sorted(own, key=lambda attempt: attempt.number or 0)
    else:
        # Each machine counts from 1.
        in_time = sorted(own, key=lambda attempt: (_started(attempt), attempt.number or 0))
        ordered = [replace(attempt, number=number) for number, attempt in enumerate(in_time, 1)]
    return replace(newest(ordered), mixed=tuple(sorted(others)), notes=copies)


def _is_of(attempt: Attempt, run_id: str) -> bool:
    return attempt.record is None or attempt.record.run_id in {"", run_id}


def _started(attempt: Attempt) -> float:
    return attempt.record.started or 0.0 if attempt.record else 0.0


def _without_copies(attempts: Sequence[Attempt]) -> tuple[list[Attempt], tuple[str, ...]]:
    """The attempts, those that were gathered twice once, and a note on each of these."""
    kept: list[Attempt] = []
    notes: list[str] = []
    for attempt in attempts:
        same = next((other for other in kept if _is_copy(attempt, other)), None)
        if same is None:
            kept.append(attempt)
        else:
            notes.append(f"{attempt.folder} is a copy of {same.folder}, and counts once")
    return kept, tuple(notes)


def _is_copy(one: Attempt, other: Attempt) -> bool:
    same_record = one.record is not None and one.record.started is not None and one.record == other.record
    names = [[path.name for path in attempt.files] for attempt in (one, other)]
    return same_record and one.number == other.number and names[0] == names[1]
