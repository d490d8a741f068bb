"""Accounts for every planned job, collected test and launched rank: anything missing becomes an error testcase."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple

from allranks.errors import ExitCode, counted
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import named, numbers
from allranks.protocol.records import JOURNAL
from allranks.report.folder import Attempt
from allranks.report.gathering import Gathered, problem_of_unread
from allranks.report.judge.attempts import Attempts
from allranks.report.judge.baseline import Baseline, BaselineCheck
from allranks.report.judge.exit_code import code_of_error
from allranks.report.judge.judging import expected_ranks, files_of, stated_sizes
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.judged import MANIFEST_KEY, CellSuite, job_error
from allranks.report.rank_xml import RankReader
from allranks.report.results import RankFile, TestVerdict
from allranks.report.run_files import NO_RECORD, Manifest, PlannedJob

_EMPTY: Final = (
    "No test was collected: pytest finds none at the paths of the suite.\n"
    "Correct the suite's paths in the matrix file, or remove the suite."
)
_LOST: Final = "The job left no results: it did not start, or its results were lost."
_LOST_SHARD: Final = (
    "The shard left no results, unlike other shards of its suite: it did not start, or its results were lost.\n"
    "Add its results. If it was left out on purpose, merge the run's own folder, whose plan does not have this shard."
)
_PARTIAL_RERUN: Final = "attempt {} reran a part of the job; the other results are from {}"


class _CollectionDifference(NamedTuple):
    """How the collections of a job's attempts differ from the first collection of its suite."""

    error: str = ""
    notes: tuple[str, ...] = ()


class _Context(NamedTuple):
    """What is known before the results of any job are read; jobs are identified by cell and suite."""

    planned: Mapping[tuple[str, str], PlannedJob]
    cells: Mapping[str, Mapping[str, str | int]]
    split_errors: Mapping[tuple[str, str], str]
    differences: Mapping[tuple[str, str], _CollectionDifference]
    run_id: str  # the run that the results should belong to; empty if unknown
    policy: VerdictPolicy

    def difference(self, attempt: Attempt) -> _CollectionDifference:
        return self.differences.get((attempt.cell, attempt.suite), _CollectionDifference())


def account(
    gathered: Gathered, policy: VerdictPolicy, baseline: Baseline | None = None, allowed: Collection[str] = ()
) -> Iterator[CellSuite]:
    """Judge each planned job, in the order of the plan, then each unplanned job.

    The results of one job at a time are read, so that few are in memory.

    Args:
        gathered: The results.
        policy: The policy of the run.
        baseline: The expected numbers of executed tests; None for those in the manifest.
        allowed: XML attributes that do not affect an outcome.
    """
    plan, attempts = gathered.manifest or Manifest(run_id=""), gathered.attempts
    found = {(attempt.cell, attempt.suite): attempt for attempt in attempts}
    planned = {job.key: job for job in plan.jobs}
    shards = _expected_shards(attempts, gathered.own_plan)
    context = _Context(
        planned=planned,
        cells=plan.cells,
        split_errors=_split_errors(attempts),
        differences=_compare_collections(attempts),
        run_id=gathered.run_id,
        policy=policy,
    )
    check = BaselineCheck(plan.policy.baseline if baseline is None else baseline)
    reader = RankReader(allowed)
    for key in dict.fromkeys((*planned, *shards, *found)):
        if key in found:
            yield check.checked(_judged_job(found[key], reader, context))
        elif key in planned:
            yield _missing_job(planned[key], plan.cells, _LOST)
        else:
            yield _missing_job(shards[key], plan.cells, _LOST_SHARD)
    if gathered.manifest is None:
        yield from check.missing_suites()


def _expected_shards(
    attempts: Sequence[Attempt], own_plan: AbstractSet[tuple[str, str]]
) -> dict[tuple[str, str], PlannedJob]:
    """All shards of each suite of which at least one shard has results.

    The exception is a suite whose shards are all in the merged folder's own plan: a run of a single shard leaves the
    others out on purpose. The plan of one machine, in contrast, does not show what the other machines had to run.
    """
    groups: dict[tuple[str, tuple[str, ...]], set[tuple[str, str]]] = {}
    for attempt in attempts:
        if share := (attempt.record or NO_RECORD).share:
            groups.setdefault((attempt.cell, share.all_names), set()).add((attempt.cell, attempt.suite))
    return {
        (cell, name): PlannedJob(cell=cell, suite=name)
        for (cell, names), present in groups.items()
        if not present <= own_plan
        for name in names
    }


def _split_errors(attempts: Sequence[Attempt]) -> dict[tuple[str, str], str]:
    """An error for each job whose suite was divided differently by different shards."""
    splits: dict[tuple[str, str, int], dict[str, str]] = {}
    for attempt in attempts:
        if (share := (attempt.record or NO_RECORD).share) and share.split:
            splits.setdefault((attempt.cell, share.suite, share.count), {})[attempt.suite] = share.split
    return {
        (cell, name): (
            f"The shards {', '.join(sorted(digests))} divided {suite} differently, so tests may have run twice or not "
            "at all.\nThey collected different tests or used different durations.\n"
            "Run all shards in one run, or give all of them the same durations file."
        )
        for (cell, suite, _), digests in splits.items()
        if len(set(digests.values())) > 1
        for name in digests
    }


def _compare_collections(attempts: Sequence[Attempt]) -> dict[tuple[str, str], _CollectionDifference]:
    """Compare what all attempts at a suite in a cell collected, including the attempts at its shards."""
    suites: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in chain.from_iterable((*job.earlier, job) for job in attempts):
        record = attempt.record or NO_RECORD
        if record.full_collection:
            suite = record.share.suite if record.share else attempt.suite
            suites.setdefault((attempt.cell, suite), []).append(attempt)
    found: dict[tuple[str, str], _CollectionDifference] = {}
    for first, *others in suites.values():
        jobs = by_key(((attempt.cell, attempt.suite), attempt) for attempt in others)
        found |= {key: _compare(first, own) for key, own in jobs.items()}
    return found


def _compare(first: Attempt, others: Sequence[Attempt]) -> _CollectionDifference:
    from allranks.protocol.parameter_values import REMEDY, VARIABLE, changes  # noqa: PLC0415 - few jobs have several

    errors, notes = [], []
    for other in others:
        found = changes(_collection_of(first), _collection_of(other))
        both = f"{_name_of(first)} and {_name_of(other)}"
        if found.other_values:
            errors.append(f"The parameter values of {named(found.other_values)} differ between {both}.")
        if found.other_variables:
            notes.append(f"{VARIABLE.capitalize()} differ between {both}: {named(found.other_variables)}")
        if found.added or found.removed:
            only = ((found.removed, first), (found.added, other))
            lists = [f"only in {_name_of(one)}: {named(tests)}" for tests, one in only if tests]
            notes.append(f"{both} collected different tests; {'; '.join(lists)}")
    error = "\n".join([*errors, "Their results cannot be combined.", REMEDY]) if errors else ""
    return _CollectionDifference(error=error, notes=tuple(notes))


def _collection_of(attempt: Attempt) -> Mapping[str, str]:
    return (attempt.record or NO_RECORD).full_collection


def _name_of(attempt: Attempt) -> str:
    name = f"attempt {attempt.number}"
    return f"{name} of {attempt.suite}" if (attempt.record or NO_RECORD).share else name


def input_errors(gathered: Gathered) -> Iterator[CellSuite]:
    """The errors of the input as a whole: because of them, jobs may be missing without a trace."""
    unread = (problem_of_unread(gathered.unread),) if gathered.unread else ()
    if problems := (*gathered.problems, *unread):
        cell, suite = MANIFEST_KEY
        tests = tuple(job_error("manifest", problem, ExitCode.UNACCOUNTED) for problem in problems)
        yield CellSuite(cell=cell, suite=suite, tests=tests)


def _missing_job(job: PlannedJob, cells: Mapping[str, Mapping[str, str | int]], problem: str) -> CellSuite:
    return CellSuite(
        cell=job.cell,
        suite=job.suite,
        image=job.image,
        axes=cells.get(job.cell, {}),
        batch=job.batch,
        tests=(job_error("job", problem, ExitCode.UNACCOUNTED),),
    )


def _judged_job(attempt: Attempt, reader: RankReader, context: _Context) -> CellSuite:
    record, job = attempt.record or NO_RECORD, context.planned.get((attempt.cell, attempt.suite))
    attempts = Attempts(attempt, context.policy)
    earlier_errors: list[TestVerdict] = []
    for earlier in attempt.earlier:
        earlier_files = files_of(earlier, reader)
        attempts.add(earlier, earlier_files)
        earlier_errors += _file_errors(earlier_files) if attempts.counts(earlier) else ()
    files = files_of(attempt, reader)
    return CellSuite(
        cell=attempt.cell,
        suite=attempt.suite,
        axes=context.cells.get(attempt.cell, {}),
        batch=job.batch if job else "",
        tests=(*_job_errors(attempt, files, context), *earlier_errors, *attempts.verdicts(attempt, files)),
        timelines=next((file.timelines for file in files if file.timelines), {}),
        tags=next((file.tags for file in files if file.tags), {}),
        engine=record.engine,
        torch=next((file.torch for file in files if file.torch), ""),
        image=(job.image if job else "") or record.image,
        attempt=attempt.number or None,
        folder=attempt.folder,
        gpus=record.gpus,
        deselected=record.deselected,
        notes=(
            *record.notes,
            *attempt.notes,
            *((_PARTIAL_RERUN.format(attempt.number, attempt.base.folder),) if attempt.base else ()),
            *context.difference(attempt).notes,
            *dict.fromkeys(file.note for file in files if file.note),
        ),
        repeated=record.repeated,
        started=record.started,
        elapsed=record.elapsed,
        seed=record.seed,
        share=record.share,
    )


def _job_errors(attempt: Attempt, files: Sequence[RankFile], context: _Context) -> Iterator[TestVerdict]:
    """The errors of the job itself, apart from its tests."""
    yield from _record_errors(attempt, context)
    yield from _foreign_file_errors(attempt, files)
    if text := context.split_errors.get((attempt.cell, attempt.suite)):
        yield job_error("split", text, ExitCode.UNACCOUNTED)
    if text := context.difference(attempt).error:
        yield job_error("parameters", text, ExitCode.UNACCOUNTED)
    if attempt.record and not attempt.record.error and any(file.is_unfinished for file in files):
        text = f"job.json records that the job finished, but {JOURNAL} does not."
        yield job_error("job", text, ExitCode.UNACCOUNTED)
    yield from _file_errors(files)
    yield from _world_size_errors(attempt, files)
    if all(file.rank is not None for file in attempt.files):
        yield from _rank_errors(attempt, files)
    # Check earlier attempts, too: a failure that somebody removed from one of them would count as resolved.
    for one_attempt in (attempt, *attempt.earlier):
        yield from _changed_file_errors(one_attempt)


def _world_size_errors(attempt: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
    """An error if two sources state different numbers of ranks."""
    sources: dict[int, str] = {}
    for source, size in stated_sizes(attempt, files).items():
        sources.setdefault(size, source)
    if len(sources) > 1:
        statements = ", but ".join(f"{source} states {counted(size, 'rank')}" for size, source in sources.items())
        yield job_error("job", f"{statements}.\nMerge only files of one job and one run.", ExitCode.UNACCOUNTED)


def _rank_errors(attempt: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
    """An error for each file of a rank that the job does not have, and one for ranks without a file.

    A test may have a larger world size than its job, so a file that has only such tests may belong to a higher rank.
    """
    expected = expected_ranks(attempt, files)
    for file in files:
        if file.problem or file.rank is None or file.rank in expected:
            continue
        if not (file.world_sizes and min(file.world_sizes) > file.rank):
            text = (
                f"{file.path.name} belongs to rank {file.rank}, but this job's highest rank is {expected.stop - 1}.\n"
                "Move it to the job that it belongs to."
            )
            yield job_error(f"rank {file.rank}", text, ExitCode.UNACCOUNTED)
    present = {file.rank for file in (*attempt.files, *attempt.rejected)}
    missing = [rank for rank in expected if rank not in present]
    if attempt.files and missing:
        has = "ranks {} have" if missing[1:] else "rank {} has"
        text = f"{has.format(numbers(missing))} no file.\nAdd the missing files, or rerun the job."
        yield job_error("job", text, ExitCode.UNACCOUNTED)


def _foreign_file_errors(attempt: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
    """An error for each file of another job; XML that allranks did not write belongs to the job of its first file."""
    stated = {
        file.path.name: (file.properties.get("allranks.cell", ""), file.properties.get("allranks.suite", ""))
        for file in files
    }
    record = attempt.record or NO_RECORD
    stated["job.json"] = (record.cell, record.suite)
    keys = {name: key for name, key in stated.items() if all(key)}
    own = (attempt.cell, attempt.suite) if attempt.folder else next(iter(keys.values()), ())
    for name, (cell, suite) in keys.items():
        if (cell, suite) != own:
            text = f"{name} belongs to another job, {cell} / {suite}.\nMove it to the folder of that job."
            yield job_error(name, text, ExitCode.UNACCOUNTED)


def _changed_file_errors(attempt: Attempt) -> Iterator[TestVerdict]:
    for path in attempt.changed:
        text = f"{path.name} was changed after allranks wrote it: its digest differs from the one in job.json."
        effect = (
            f"{JOURNAL} was read instead."
            if attempt.files and path not in {file.path for file in attempt.files}
            else "It was read nevertheless."
        )
        yield job_error(path.name, f"{text}\n{effect} Restore the original file.", ExitCode.UNACCOUNTED)


def _file_errors(files: Sequence[RankFile]) -> Iterator[TestVerdict]:
    for file in files:
        if file.problem:
            name = file.path.name if file.rank is None else f"rank {file.rank}"
            remedy = "" if "\n" in file.problem else "\nCopy the results of this job again, or rerun it."
            yield job_error(name, f"{file.problem}{remedy}", ExitCode.UNACCOUNTED)
    names = by_key((file.rank, file.path.name) for file in files if file.rank is not None)
    for rank, (first, *others) in names.items():
        if others:
            names_of_rank = " and ".join((first, *others))
            text = f"{names_of_rank} belong to the same rank, {rank}: the worse outcome of each test counts."
            yield job_error(f"rank {rank}", f"{text}\nKeep only one of them in the folder.", ExitCode.UNACCOUNTED)


def has_file_errors(files: Sequence[RankFile]) -> bool:
    """True if the rank files cannot be trusted."""
    return any(_file_errors(files))


def has_collected_nothing(attempt: Attempt) -> bool:
    """True if an attempt ran nothing because there were no tests, and not because all of them were deselected."""
    record = attempt.record or NO_RECORD
    left_out = attempt.base or record.deselected or (record.share and record.share.elsewhere)
    return record.collected == () and not left_out


def _record_errors(attempt: Attempt, context: _Context) -> Iterator[TestVerdict]:
    record = attempt.record or NO_RECORD
    if attempt.problem:
        yield job_error("job", attempt.problem, ExitCode.UNACCOUNTED)
    elif attempt.record is None and attempt.folder:  # XML that allranks did not write has no record
        yield job_error("job", "job.json is missing: the job is still running, or was killed.", ExitCode.UNACCOUNTED)
    yield from _other_run_errors(attempt, context.run_id)
    if record.error:
        name = "collection" if record.error.kind == "collection" else "job"
        yield job_error(name, record.error.text, code_of_error(record.error.kind))
    elif attempt.record and record.collected is None and not (attempt.files or attempt.rejected):
        yield job_error("job", "The job left no results, and job.json does not say why.", ExitCode.UNACCOUNTED)
    elif has_collected_nothing(attempt):
        yield job_error("collection", _EMPTY, ExitCode.NOTHING_RAN)


def _other_run_errors(attempt: Attempt, run_id: str) -> Iterator[TestVerdict]:
    """An error for results of another run."""
    record, remedy = attempt.record or NO_RECORD, "Merge each run in its own folder."
    if record.run_id not in {"", run_id}:
        text = f"These results belong to run {record.run_id}, but the others belong to run {run_id}."
        yield job_error("run", f"{text}\n{remedy}", ExitCode.UNACCOUNTED)
    elif attempt.other_runs:
        text = f"This job also has results of run {' and '.join(attempt.other_runs)}, which were ignored."
        yield job_error("run", f"{text}\n{remedy}", ExitCode.UNACCOUNTED)
