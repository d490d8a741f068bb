"""The results below a folder: one run, the parts of one, or the XML of ranks (:mod:`allranks.report.input_rule`).

A part is a folder with a manifest or with attempts at jobs, at any depth. Parts of one run have its id; their plans are
combined, and of the attempts at one job, from any part, the newest counts.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from allranks.errors import UsageError
from allranks.protocol.config import COVERAGE
from allranks.protocol.records import MOST_RANKS
from allranks.protocol.xml_text import clipped, printable, xml_id
from allranks.report.folder import (
    Attempt,
    FoundManifest,
    ResultFile,
    has_attempts,
    is_attempt,
    is_merged_report,
    is_stray,
    newest,
    read_attempts,
    read_manifest,
)
from allranks.report.input_rule import (
    JOBS,
    ONE_JOB,
    RECORD,
    USUAL,
    InputRule,
    RankPattern,
    may_have_results,
    world_size_of,
)
from allranks.report.run_files import Manifest, PlannedJob
from allranks.report.untrusted import digest, leads_out, walk

_REPORT: Final = re.compile(r"junit(-[0-9]+)?\.xml")
"""The names of a merged report's own files."""

_WRITTEN: Final = re.compile(r"report\.(html|json)|summary\.md|\..+\.unfinished")
"""What a merge replaces in the folder, whatever stands there, apart from ``junit.xml``."""

_PLAN: Final = "run.json"

_LAYOUT: Final = "test-reports"
"""The folder of a merged report in PyTorch's layout."""

_NO_PLAN: Final = "no run.json came with these results, so a job that left none is not missed"


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The input to judge."""

    run_id: str  # the run that the results should belong to
    manifest: Manifest | None  # the combined plan of the parts; None if none of them has one
    own_plan: frozenset[tuple[str, str]]  # the jobs of the folder's own plan, by cell and suite; empty without one
    problems: tuple[str, ...]  # what is wrong with the input as a whole; a sentence or a few for each
    attempts: tuple[Attempt, ...]  # the newest attempt of each job, by cell and suite
    unread: tuple[Path, ...] = ()  # what could have results and is no part of this, relative to the folder

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to judge."""
        return not self.attempts and self.manifest is None and not self.problems

    @property
    def is_own(self) -> bool:
        """True if any of it states the run that it belongs to."""
        return self.manifest is not None or any(found.record and found.record.run_id for found in self.attempts)


def gather(root: Path, rule: InputRule = USUAL) -> Gathered:
    """The results below a folder, given as a resolved path.

    Raises:
        UsageError: The options do not fit them.
        OSError: A folder cannot be read: its content could go missing unnoticed.
    """
    parts, candidates, cells = _search(root, rule)
    if not parts:
        full = {folder for path in candidates for folder in path.parents}
        candidates += [cell for cell in cells if cell not in full]
    gathered = _run(root, parts) if parts else _rank_xml(root, candidates, rule)
    folders = [part.folder for part in parts]
    if parts and (rule.pattern or rule.world_size):
        msg = f"--ranks-xml and --world-size are for the XML of ranks, and {root} has the folder of a run."
        mark = "cells" if has_attempts(folders[0]) else _PLAN
        why = f"{folders[0] / mark} makes it one."
        raise UsageError(msg, why=why, remedy="Leave them out, or merge another folder.")
    read = {file.path for each in gathered.attempts for file in (*each.files, *each.strays)}
    above = {root, *folders, *(folder for path in read for folder in path.parents if folder.is_relative_to(root))}
    left = [
        path.relative_to(root)
        for path in candidates
        if path not in read and not _is_own_report(root, path, folders, above)
    ]
    unread = tuple(path for path in left if not rule.ignores(path))
    if rule.pattern and (unclear := next(filter(rule.pattern.is_ambiguous, unread), None)):
        msg = f"{printable(unclear.as_posix())} matches --ranks-xml {rule.pattern.text!r} in two ways."
        raise UsageError(msg, remedy="Separate the placeholders by / or by what no name has, or rename the file.")
    notes = tuple(f"--ignore {pattern!r} matches nothing that could be ignored" for pattern in rule.useless(left))
    return _noted(replace(gathered, unread=unread), notes)


def _noted(gathered: Gathered, notes: tuple[str, ...]) -> Gathered:
    """The input with notes on the whole, which its first job has."""
    if not gathered.attempts:
        return gathered
    first, *others = gathered.attempts
    return replace(gathered, attempts=(replace(first, notes=(*first.notes, *notes)), *others))


class _Part(NamedTuple):
    """The folder of a run, or of one machine's part of it."""

    folder: Path
    file: Path  # its plan, relative to the merged folder
    plan: FoundManifest


def _search(root: Path, rule: InputRule) -> tuple[list[_Part], list[Path], list[Path]]:
    """The folders of runs, parents first; all outside of attempts that may have results; folders of cells."""
    parts: list[_Part] = []
    candidates: list[Path] = []
    cells: list[Path] = []
    for path, folders, others in walk(root):
        if not rule.reads(path):
            folders[:] = [name for name in folders if any(each.is_relative_to(path / name) for each in rule.only)]
            continue
        file = (path / _PLAN).relative_to(root)
        found = read_manifest(root, path) if _PLAN in (*folders, *others) else FoundManifest()
        if found.problem and rule.ignores(file):
            if not found.is_foreign:
                candidates.append(root / file)  # as one that is ignored
            found = FoundManifest()
        if found.manifest or (found.problem and not found.is_foreign) or has_attempts(path):
            parts.append(_Part(path, file, found))
        candidates.extend(path / name for name in sorted((*folders, *others)) if may_have_results(name))
        candidates.extend(path / name for name in others if _is_lost_link(root, path / name))
        cells.extend(path / name for name in folders if world_size_of(name))
        folders[:] = [name for name in folders if not is_attempt(root, path / name)]
    return parts, candidates, cells


def _is_lost_link(root: Path, path: Path) -> bool:
    """True for a link to a folder that is not searched, and for one that may have led to one: it is broken."""
    if not path.is_symlink() or may_have_results(path.name) or path.is_file():
        return False
    if path.parent == root and _WRITTEN.fullmatch(path.name):
        return False
    return not path.is_dir() or leads_out(root, path)


def _is_own_report(root: Path, path: Path, parts: Collection[Path], above: Collection[Path]) -> bool:
    """True for XML that allranks wrote: merged reports beside or above the results, and the coverage of a run."""
    if path in {root / "junit.xml", *(part / COVERAGE / f"{COVERAGE}.xml" for part in parts)}:
        return True
    is_in_place = _REPORT.fullmatch(path.name) is not None and path.parent in above
    is_in_place = is_in_place or any(each.name == _LAYOUT and each.parent in above for each in path.parents)
    return is_in_place and is_merged_report(path)


def nothing_found(root: Path, gathered: Gathered, rule: InputRule) -> UsageError:
    """The error for a folder without results to judge."""
    wanted = " or ".join(pattern.text for pattern in ([rule.pattern] if rule.pattern else [JOBS, ONE_JOB]))
    unfit = f" It has {_named(gathered.unread)}." if gathered.unread else ""
    return UsageError(
        f"There is nothing to merge in {root}.",
        why=f"It has no run.json of allranks, no attempt at a job in cells/, and no file that matches {wanted}.{unfit}",
        remedy=_where_results_are(root, gathered.unread)
        or "Give the folder of a run (results/latest), or the form of the ranks' XML: --ranks-xml PATTERN.",
    )


def _where_results_are(root: Path, unread: Iterable[Path]) -> str:
    """A remedy for files of the default form that are in a deeper folder; empty if there are none."""
    levels = len(JOBS.text.split("/"))
    for path in unread:
        if path.parts[:-levels] and JOBS.place(Path(*path.parts[-levels:])):
            deeper = path.parents[levels - 1]
            return printable(f"Merge {root / deeper}, or add --ranks-xml '{deeper.as_posix()}/{JOBS.text}'.")
    return ""


def problem_of_unread(paths: Sequence[Path]) -> str:
    """The problem with what could have results and is not read, in a few sentences."""
    return (
        f"{_named(paths)} could have results, but merge did not read {'them' if len(paths) > 1 else 'it'}.\n"
        "It reads the folders of runs, with cells/ of each machine whole, or else files that match --ranks-xml.\n"
        "Unpack, move or rename what has results, and accept the rest: --ignore GLOB."
    )


_MOST_NAMED: Final = 3


def _named(paths: Sequence[Path]) -> str:
    names = ", ".join(clipped(printable(path.as_posix()), 200) for path in paths[:_MOST_NAMED])
    return f"{names} and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else names


def _rank_xml(root: Path, candidates: Sequence[Path], rule: InputRule) -> Gathered:
    """The jobs whose ranks left XML that matches the pattern."""
    pattern = rule.pattern or _usual_pattern(root, candidates)
    jobs: dict[tuple[str, str], list[ResultFile]] = {}
    for path in candidates:
        if place := pattern.place(path.relative_to(root)):
            jobs.setdefault((place.cell or root.name, place.suite or "tests"), []).append(ResultFile(path, place.rank))
    attempts = (_job_of_xml(root, place, jobs[place], rule) for place in sorted(jobs))
    return Gathered(run_id=root.name, manifest=None, own_plan=frozenset(), problems=(), attempts=tuple(attempts))


def _usual_pattern(root: Path, candidates: Iterable[Path]) -> RankPattern:
    return ONE_JOB if any(ONE_JOB.place(path.relative_to(root)) for path in candidates) else JOBS


def _job_of_xml(root: Path, place: tuple[str, str], files: Sequence[ResultFile], rule: InputRule) -> Attempt:
    cell, suite = place
    sizes = {"the cell": world_size_of(cell), "--world-size": rule.world_size}
    return Attempt(
        cell=xml_id(cell),
        suite=xml_id(suite),
        files=tuple(file for file in files if not is_stray(root, file.path)),
        strays=tuple(file for file in files if is_stray(root, file.path)),
        world_sizes={who: size for who, size in sizes.items() if size},
    )


def _run(root: Path, parts: Sequence[_Part]) -> Gathered:
    """The run whose parts these are."""
    plans = {part.file.as_posix(): part.plan.manifest for part in parts if part.plan.manifest}
    problems = [_located(part.file, part.plan.problem) for part in parts if part.plan.problem]
    sizes = _world_sizes(plans.values())
    attempts = [
        _Found(number, attempt)
        for number, part in enumerate(parts)
        for attempt in read_attempts(root, part.folder, sizes)
    ]
    run_id = _run_of(root, plans, [found.attempt for found in attempts])
    gathered = Gathered(
        run_id=run_id,
        manifest=_together([*plans.values()], run_id) if plans else None,
        own_plan=frozenset(job.place for job in plans[_PLAN].jobs) if _PLAN in plans else frozenset(),
        problems=(*problems, *_disagreements(plans)),
        attempts=tuple(_newest_of_each(root, attempts, run_id)),
    )
    return gathered if plans or problems else _noted(gathered, (_NO_PLAN,))


def _world_sizes(manifests: Iterable[Manifest]) -> dict[str, int]:
    """The number of ranks of each cell, as far as a plan states it."""
    said = {cell: axes.get("world_size") for manifest in manifests for cell, axes in manifest.cells.items()}
    return {cell: size for cell, size in said.items() if isinstance(size, int) and 0 < size <= MOST_RANKS}


def _located(place: Path, problem: str) -> str:
    """A plan's problem, with the part that it is in; none for the folder's own plan."""
    where = "" if place.parent == Path() else f"In {place.parent.as_posix()}: "
    return f"{where}{problem}\nGather it again, or accept it if it is of another program: --ignore {place.as_posix()}"


class _Found(NamedTuple):
    """An attempt, and the number of the part that it is in."""

    part: int
    attempt: Attempt


def _run_of(root: Path, plans: Mapping[str, Manifest], attempts: Iterable[Attempt]) -> str:
    """The run that the results should belong to: the folder's own, else that of most results."""
    if _PLAN in plans:
        return plans[_PLAN].run_id
    ids = [attempt.record.run_id for attempt in attempts if attempt.record and attempt.record.run_id]
    ids = ids or [manifest.run_id for manifest in plans.values()]
    counts = Counter(ids)
    return max(counts, key=lambda run_id: (counts[run_id], run_id), default=root.name)


def _together(manifests: Sequence[Manifest], run_id: str) -> Manifest:
    """One plan from all, with all their machines and commits; where they disagree otherwise, the first counts."""
    jobs: dict[tuple[str, str], PlannedJob] = {}
    for job in chain.from_iterable(manifest.jobs for manifest in manifests):
        jobs.setdefault(job.place, job)
    return replace(
        manifests[0],
        run_id=run_id,
        host=_all(manifest.host for manifest in manifests),
        commit=_all(manifest.commit for manifest in manifests),
        cells={cell: axes for manifest in reversed(manifests) for cell, axes in manifest.cells.items()},
        jobs=tuple(jobs.values()),
        policy=replace(manifests[0].policy, baseline=_most([manifest.policy.baseline for manifest in manifests])),
    )


def _all(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))


def _most(baselines: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    most: dict[str, dict[str, int]] = {}
    for baseline in baselines:
        for cell, suites in baseline.items():
            for suite, count in suites.items():
                counts = most.setdefault(cell, {})
                counts[suite] = max(count, counts.get(suite, 0))
    return most


def _disagreements(plans: Mapping[str, Manifest]) -> Iterator[str]:
    """Contradictions between parts of one run, by their ``run.json``: they ran with different matrix files."""
    first = next(iter(plans), "")
    for file, manifest in plans.items():
        if _rules(manifest) != _rules(plans[first]):
            yield (
                f"{file} and {first} have different policies: they come from different matrix files.\n"
                f"The policy of {first} was applied. Run all parts from one commit."
            )


def _rules(manifest: Manifest) -> tuple[object, ...]:
    return manifest.policy.skip, manifest.policy.mixed_skip


def _newest_of_each(root: Path, attempts: Iterable[_Found], run_id: str) -> Iterator[Attempt]:
    by_job: dict[tuple[str, str], list[_Found]] = {}
    for found in attempts:
        by_job.setdefault((found.attempt.cell, found.attempt.suite), []).append(found)
    for place in sorted(by_job):
        yield _newest(root, by_job[place], run_id)


def _newest(root: Path, attempts: Sequence[_Found], run_id: str) -> Attempt:
    """The attempt that counts, with those before it; attempts of another run do not count for this one."""
    own = [found for found in attempts if _is_of(found.attempt, run_id)] or attempts
    others = {found.attempt.record.run_id for found in attempts if found.attempt.record and found not in own}
    own, copies, damaged = _without_copies(root, own)
    ordered = [found.attempt for found in own] if len({found.part for found in own}) == 1 else _in_time(own)
    counts = newest(ordered)
    before = (f"In {each.folder}: {each.problem}" for each in reversed(counts.earlier) if each.problem)
    problem = counts.problem or next(before, "") or damaged  # what failed in an earlier one may not be known
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


def _without_copies(root: Path, attempts: Sequence[_Found]) -> tuple[list[_Found], list[str], str]:
    """The attempts without those that were gathered twice, a note on each of these, and a problem if two copies differ.

    A copy has the same ``job.json``, byte by byte, in another part.
    """
    if len({found.part for found in attempts}) == 1:
        return list(attempts), [], ""
    kept: dict[str, _Found] = {}
    notes, problem = [], ""
    for found in attempts:
        folder = found.attempt.folder
        same = kept.setdefault(digest(root / folder / RECORD) or folder, found)
        if same is found:
            continue
        if _digests(found.attempt) == _digests(same.attempt):
            notes.append(f"{folder} is a copy of {same.attempt.folder}, and is counted once")
        else:
            problem = (
                f"{folder} is a copy of {same.attempt.folder}, but their results differ: one of them is damaged.\n"
                "Gather the results of that machine again."
            )
    return list(kept.values()), notes, problem


def _digests(attempt: Attempt) -> dict[str, str]:
    return {file.path.name: digest(file.path) for file in attempt.files}
