"""Finds the results in a folder: a run, parts of a run, or the XML of ranks (:mod:`allranks.report.input_rule`).

A part is a folder with a manifest or with attempts at jobs, at any depth. Parts of a run have the run's id. Their plans
are combined, and of all attempts at a job, from any part, the newest counts.
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
from allranks.protocol.grouping import by_key
from allranks.protocol.records import MOST_RANKS
from allranks.protocol.xml_text import clipped, printable, xml_id
from allranks.report.folder import (
    Attempt,
    FoundManifest,
    ResultFile,
    has_attempts,
    is_attempt,
    is_merged_report,
    is_rejected,
    newest,
    read_attempts,
    read_manifest,
)
from allranks.report.input_rule import (
    DEFAULT_RULE,
    JOBS,
    ONE_JOB,
    RECORD,
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
"""Files, apart from ``junit.xml``, that a merge replaces."""

_PLAN: Final = "run.json"

_LAYOUT: Final = "test-reports"
"""The folder of a merged report in PyTorch's layout."""

_NO_PLAN: Final = "these results have no run.json, so jobs without results go unnoticed"


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The results in a folder."""

    run_id: str  # the run that the results should belong to
    manifest: Manifest | None  # the combined plan of the parts; None if none of them has one
    own_plan: frozenset[tuple[str, str]]  # the jobs of the folder's own plan, by cell and suite; empty without one
    problems: tuple[str, ...]  # the problems of the input as a whole
    attempts: tuple[Attempt, ...]  # the newest attempt at each job
    unread: tuple[Path, ...] = ()  # relative paths of other files that could have results

    @property
    def is_empty(self) -> bool:
        return not self.attempts and self.manifest is None and not self.problems

    @property
    def is_own(self) -> bool:
        """True if any results state the run that they belong to."""
        return self.manifest is not None or any(found.record and found.record.run_id for found in self.attempts)


def gather(root: Path, rule: InputRule = DEFAULT_RULE) -> Gathered:
    """Find the results in a folder, whose path is resolved.

    Raises:
        UsageError: The options do not fit the results.
        OSError: A folder cannot be read, and its content would be lost unnoticed.
    """
    parts, candidates, cells = _search(root, rule)
    if not parts:
        full = {folder for path in candidates for folder in path.parents}
        candidates += [cell for cell in cells if cell not in full]
    gathered = _run(root, parts) if parts else _rank_xml(root, candidates, rule)
    folders = [part.folder for part in parts]
    if parts and (rule.pattern or rule.world_size):
        msg = f"--ranks-xml and --world-size are only for the XML of ranks, but {root} has the folder of a run."
        mark = "cells" if has_attempts(folders[0]) else _PLAN
        why = f"It has {folders[0] / mark}."
        raise UsageError(msg, why=why, remedy="Remove these options, or merge another folder.")
    read = {file.path for attempt in gathered.attempts for file in (*attempt.files, *attempt.rejected)}
    above = {root, *folders, *(folder for path in read for folder in path.parents if folder.is_relative_to(root))}
    left = [
        path.relative_to(root)
        for path in candidates
        if path not in read and not _is_own_report(root, path, folders, above)
    ]
    unread = tuple(path for path in left if not rule.ignores(path))
    if rule.pattern and (unclear := next(filter(rule.pattern.is_ambiguous, unread), None)):
        msg = f"{printable(unclear.as_posix())} matches --ranks-xml {rule.pattern.text!r} in two ways."
        remedy = "Separate the placeholders by / or by text that no name contains, or rename the file."
        raise UsageError(msg, remedy=remedy)
    notes = tuple(f"--ignore {pattern!r} matches no file that needs to be ignored" for pattern in rule.useless(left))
    return _with_notes(replace(gathered, unread=unread), notes)


def _with_notes(gathered: Gathered, notes: tuple[str, ...]) -> Gathered:
    """Add notes about the input as a whole to its first job."""
    if not gathered.attempts:
        return gathered
    first, *others = gathered.attempts
    return replace(gathered, attempts=(replace(first, notes=(*first.notes, *notes)), *others))


class _Part(NamedTuple):
    """The folder of a run, or of one machine's part of it."""

    folder: Path
    file: Path  # the path of its plan, relative to the merged folder
    plan: FoundManifest


def _search(root: Path, rule: InputRule) -> tuple[list[_Part], list[Path], list[Path]]:
    """Find folders of runs (parents first), paths outside of attempts that may have results, and folders of cells."""
    parts: list[_Part] = []
    candidates: list[Path] = []
    cells: list[Path] = []
    for path, folders, others in walk(root):
        if not rule.reads(path):
            folders[:] = [name for name in folders if any(only.is_relative_to(path / name) for only in rule.only)]
            continue
        file = (path / _PLAN).relative_to(root)
        found = read_manifest(root, path) if _PLAN in (*folders, *others) else FoundManifest()
        if found.problem and rule.ignores(file):
            if not found.is_foreign:
                candidates.append(root / file)  # it is ignored later
            found = FoundManifest()
        if found.manifest or (found.problem and not found.is_foreign) or has_attempts(path):
            parts.append(_Part(path, file, found))
        candidates.extend(path / name for name in sorted((*folders, *others)) if may_have_results(name))
        candidates.extend(path / name for name in others if _is_lost_link(root, path / name))
        cells.extend(path / name for name in folders if world_size_of(name))
        folders[:] = [name for name in folders if not is_attempt(root, path / name)]
    return parts, candidates, cells


def _is_lost_link(root: Path, path: Path) -> bool:
    """True for a link to a folder outside, and for a broken link, which may have led to one."""
    if not path.is_symlink() or may_have_results(path.name) or path.is_file():
        return False
    if path.parent == root and _WRITTEN.fullmatch(path.name):
        return False
    return not path.is_dir() or leads_out(root, path)


def _is_own_report(root: Path, path: Path, parts: Collection[Path], above: Collection[Path]) -> bool:
    """True for XML that allranks wrote: merged reports next to or above the results, and the coverage of a run."""
    if path in {root / "junit.xml", *(part / COVERAGE / f"{COVERAGE}.xml" for part in parts)}:
        return True
    is_report_path = _REPORT.fullmatch(path.name) is not None and path.parent in above
    is_report_path |= any(parent.name == _LAYOUT and parent.parent in above for parent in path.parents)
    return is_report_path and is_merged_report(path)


def nothing_found(root: Path, gathered: Gathered, rule: InputRule) -> UsageError:
    """The error for a folder without results."""
    patterns = " or ".join(pattern.text for pattern in ([rule.pattern] if rule.pattern else [JOBS, ONE_JOB]))
    others = f" It has {_named(gathered.unread)}." if gathered.unread else ""
    return UsageError(
        f"There is nothing to merge in {root}.",
        why=f"It has no run.json of allranks, no attempt in cells/, and no file that matches {patterns}.{others}",
        remedy=_where_results_are(root, gathered.unread)
        or "Give the folder of a run (results/latest), or the path pattern of the ranks' XML: --ranks-xml PATTERN.",
    )


def _where_results_are(root: Path, unread: Iterable[Path]) -> str:
    """A remedy if a deeper folder has files that match the default pattern."""
    levels = len(JOBS.text.split("/"))
    for path in unread:
        if path.parts[:-levels] and JOBS.match(Path(*path.parts[-levels:])):
            deeper = path.parents[levels - 1]
            return printable(f"Merge {root / deeper}, or add --ranks-xml '{deeper.as_posix()}/{JOBS.text}'.")
    return ""


def problem_of_unread(paths: Sequence[Path]) -> str:
    """The problem of files that could have results but were not read."""
    return (
        f"{_named(paths)} could have results, but {'were' if len(paths) > 1 else 'was'} not read.\n"
        "A merge reads run folders, each with its complete cells/ folder; without one, files that match --ranks-xml.\n"
        "Unpack, move or rename files with results, and ignore the others: --ignore GLOB."
    )


_MOST_NAMED: Final = 3


def _named(paths: Sequence[Path]) -> str:
    names = ", ".join(clipped(printable(path.as_posix()), 200) for path in paths[:_MOST_NAMED])
    return f"{names} and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else names


def _rank_xml(root: Path, candidates: Sequence[Path], rule: InputRule) -> Gathered:
    """The jobs of the rank XML that matches the pattern."""
    pattern = rule.pattern or _default_pattern(root, candidates)
    jobs = by_key(
        ((match.cell or root.name, match.suite or "tests"), ResultFile(path, match.rank))
        for path in candidates
        if (match := pattern.match(path.relative_to(root)))
    )
    attempts = (_xml_job(root, key, jobs[key], rule) for key in sorted(jobs))
    return Gathered(run_id=root.name, manifest=None, own_plan=frozenset(), problems=(), attempts=tuple(attempts))


def _default_pattern(root: Path, candidates: Iterable[Path]) -> RankPattern:
    return ONE_JOB if any(ONE_JOB.match(path.relative_to(root)) for path in candidates) else JOBS


def _xml_job(root: Path, key: tuple[str, str], files: Sequence[ResultFile], rule: InputRule) -> Attempt:
    cell, suite = key
    sizes = {"the cell": world_size_of(cell), "--world-size": rule.world_size}
    return Attempt(
        cell=xml_id(cell),
        suite=xml_id(suite),
        files=tuple(file for file in files if not is_rejected(root, file.path)),
        rejected=tuple(file for file in files if is_rejected(root, file.path)),
        world_sizes={source: size for source, size in sizes.items() if size},
    )


def _run(root: Path, parts: Sequence[_Part]) -> Gathered:
    plans = {part.file.as_posix(): part.plan.manifest for part in parts if part.plan.manifest}
    problems = [_located(part.file, part.plan.problem) for part in parts if part.plan.problem]
    sizes = _world_sizes(plans.values())
    attempts = [
        _Found(number, attempt)
        for number, part in enumerate(parts)
        for attempt in read_attempts(root, part.folder, sizes)
    ]
    run_id = _run_id(root, plans, [found.attempt for found in attempts])
    gathered = Gathered(
        run_id=run_id,
        manifest=_combined([*plans.values()], run_id) if plans else None,
        own_plan=frozenset(job.key for job in plans[_PLAN].jobs) if _PLAN in plans else frozenset(),
        problems=(*problems, *_disagreements(plans)),
        attempts=tuple(_newest_of_each(root, attempts, run_id)),
    )
    return gathered if plans or problems else _with_notes(gathered, (_NO_PLAN,))


def _world_sizes(manifests: Iterable[Manifest]) -> dict[str, int]:
    """The number of ranks of each cell, if a plan states it."""
    sizes = {cell: axes.get("world_size") for manifest in manifests for cell, axes in manifest.cells.items()}
    return {cell: size for cell, size in sizes.items() if isinstance(size, int) and 0 < size <= MOST_RANKS}


def _located(plan: Path, problem: str) -> str:
    """The problem of a plan, with the part of the run that has it."""
    where = "" if plan.parent == Path() else f"In {plan.parent.as_posix()}: "
    remedy = f"Copy it again or, if it is from another program, ignore it: --ignore {plan.as_posix()}"
    return f"{where}{problem}\n{remedy}"


class _Found(NamedTuple):
    """An attempt, and the number of the part that has it."""

    part: int
    attempt: Attempt


def _run_id(root: Path, plans: Mapping[str, Manifest], attempts: Iterable[Attempt]) -> str:
    """The run that the results should belong to: that of the folder's own plan, or else of most results."""
    if _PLAN in plans:
        return plans[_PLAN].run_id
    ids = [attempt.record.run_id for attempt in attempts if attempt.record and attempt.record.run_id]
    ids = ids or [manifest.run_id for manifest in plans.values()]
    counts = Counter(ids)
    return max(counts, key=lambda run_id: (counts[run_id], run_id), default=root.name)


def _combined(manifests: Sequence[Manifest], run_id: str) -> Manifest:
    """One plan with all jobs, machines and commits; other values are those of the first plan."""
    jobs: dict[tuple[str, str], PlannedJob] = {}
    for job in chain.from_iterable(manifest.jobs for manifest in manifests):
        jobs.setdefault(job.key, job)
    baseline = _combined_baseline(manifest.policy.baseline for manifest in manifests)
    return replace(
        manifests[0],
        run_id=run_id,
        host=_distinct(manifest.host for manifest in manifests),
        commit=_distinct(manifest.commit for manifest in manifests),
        cells={cell: axes for manifest in reversed(manifests) for cell, axes in manifest.cells.items()},
        jobs=tuple(jobs.values()),
        policy=replace(manifests[0].policy, baseline=baseline),
    )


def _distinct(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))


def _combined_baseline(baselines: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """The largest count of each suite."""
    combined: dict[str, dict[str, int]] = {}
    for baseline in baselines:
        for cell, suites in baseline.items():
            for suite, count in suites.items():
                counts = combined.setdefault(cell, {})
                counts[suite] = max(count, counts.get(suite, 0))
    return combined


def _disagreements(plans: Mapping[str, Manifest]) -> Iterator[str]:
    """Parts of one run that ran with different policies."""
    first = next(iter(plans), "")
    for file, manifest in plans.items():
        if _policy(manifest) != _policy(plans[first]):
            yield (
                f"{file} and {first} have different policies: they come from different matrix files.\n"
                f"The policy of {first} was applied. Run all parts from one commit."
            )


def _policy(manifest: Manifest) -> tuple[object, ...]:
    return manifest.policy.skip, manifest.policy.mixed_skip


def _newest_of_each(root: Path, attempts: Iterable[_Found], run_id: str) -> Iterator[Attempt]:
    by_job = by_key(((found.attempt.cell, found.attempt.suite), found) for found in attempts)
    for key in sorted(by_job):
        yield _newest(root, by_job[key], run_id)


def _newest(root: Path, attempts: Sequence[_Found], run_id: str) -> Attempt:
    """The newest attempt of this run, with its earlier ones."""
    own = [found for found in attempts if _belongs_to(found.attempt, run_id)] or attempts
    others = {found.attempt.record.run_id for found in attempts if found.attempt.record and found not in own}
    own, copies, damaged = _without_copies(root, own)
    ordered = [found.attempt for found in own] if len({found.part for found in own}) == 1 else _by_start(own)
    attempt = newest(ordered)
    # The failures of an earlier attempt may be unknown if it has a problem.
    earlier = (f"In {one.folder}: {one.problem}" for one in reversed(attempt.earlier) if one.problem)
    problem = attempt.problem or next(earlier, "") or damaged
    return replace(attempt, other_runs=tuple(sorted(others)), notes=(*attempt.notes, *copies), problem=problem)


def _belongs_to(attempt: Attempt, run_id: str) -> bool:
    return attempt.record is None or attempt.record.run_id in {"", run_id}


def _by_start(attempts: Sequence[_Found]) -> list[Attempt]:
    """Order attempts of several machines, each of which counts from 1, by start time, and renumber them.

    An attempt without a start time follows the one before it on its machine. If there is none before it, it counts as
    the newest, because no later attempt is known to have passed.
    """
    start: dict[int, float] = {}
    times: list[float] = []
    for part, attempt in attempts:
        started = attempt.record.started if attempt.record else None
        start[part] = start.get(part, inf) if started is None else started
        times.append(start[part])
    ordered = sorted(range(len(attempts)), key=lambda index: (times[index], index))
    numbers = {attempts[index].attempt.folder: number for number, index in enumerate(ordered, 1)}
    return [_renumbered(attempts[index].attempt, numbers) for index in ordered]


def _renumbered(attempt: Attempt, numbers: Mapping[str, int]) -> Attempt:
    base = _renumbered(attempt.base, numbers) if attempt.base else None
    return replace(attempt, number=numbers.get(attempt.folder, attempt.number), base=base)


def _without_copies(root: Path, attempts: Sequence[_Found]) -> tuple[list[_Found], list[str], str]:
    """Remove copies, which have the same ``job.json`` in another part.

    Returns:
        The other attempts, a note on each copy, and a problem if the results of two copies differ.
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
            notes.append(f"{folder} is a copy of {same.attempt.folder} and was ignored")
        else:
            problem = (
                f"{folder} is a copy of {same.attempt.folder}, but their results differ: one of them is damaged.\n"
                "Copy the results of that machine again."
            )
    return list(kept.values()), notes, problem


def _digests(attempt: Attempt) -> dict[str, str]:
    return {file.path.name: digest(file.path) for file in attempt.files}
