"""Gives every planned job, collected test and launched rank a testcase: absence is an error."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple

from allranks.errors import ExitCode
from allranks.protocol.outcomes import named, numbers
from allranks.protocol.records import JOURNAL
from allranks.report.folder import Attempt
from allranks.report.gathering import Gathered, problem_of_unread
from allranks.report.judge.attempts import Attempts
from allranks.report.judge.baseline import Baseline, BaselineWatch
from allranks.report.judge.exit_code import code_of_error
from allranks.report.judge.judging import expected_ranks, files_of, stated_sizes
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.judged import MANIFEST_PLACE, CellSuite, trouble
from allranks.report.rank_xml import RankReader
from allranks.report.results import RankFile, TestVerdict
from allranks.report.run_files import NO_RECORD, Manifest, PlannedJob

_EMPTY: Final = (
    "No test was collected: the suite has none that pytest can find.\n"
    "Correct the paths of the suite in the matrix file, or remove the suite."
)
_LOST: Final = "The job left no results: it was planned, but did not start or was lost."
_LOST_SHARD: Final = (
    "The shard left no results: other shards of its suite came, but it did not start or was lost.\n"
    "Gather its results, too. If it was left out on purpose, merge the folder of the run itself, whose plan tells so."
)
_AGAIN: Final = "Gather the results of this job again, or run it again."
_PART: Final = "attempt {} ran a part of the job again; the rest is from {}"


class _Known(NamedTuple):
    """Facts that are known before the results of any job are read."""

    planned: Mapping[tuple[str, str], PlannedJob]
    cells: Mapping[str, Mapping[str, str | int]]
    # The error of jobs that share a suite but split it differently, by cell and name.
    torn: Mapping[tuple[str, str], str]
    recollected: Mapping[tuple[str, str], "_Recollected"]  # comparisons of collections, by cell and name
    run_id: str  # the run that the results should belong to; empty if unknown
    setting: VerdictPolicy

    def recollection_of(self, attempt: Attempt) -> "_Recollected":
        """How the collections of an attempt's job differ."""
        return self.recollected.get((attempt.cell, attempt.suite), _Recollected())


def account(
    gathered: Gathered, setting: VerdictPolicy, baseline: Baseline | None = None, allowed: Collection[str] = ()
) -> Iterator[CellSuite]:
    """One suite for each planned job, in the order of the plan, then one for each unplanned job.

    The results of a job are read at its turn, attempt by attempt, so that few are in memory. Without a baseline, the
    manifest's counts. ``allowed`` attributes of XML say nothing about an outcome.
    """
    plan, attempts = gathered.manifest or Manifest(run_id=""), gathered.attempts
    found = {(attempt.cell, attempt.suite): attempt for attempt in attempts}
    planned = {job.place: job for job in plan.jobs}
    shards = _shards_of_suites(attempts, gathered.own_plan)
    known = _Known(
        planned=planned,
        cells=plan.cells,
        torn=_torn_suites(attempts),
        recollected=_compare_collections(attempts),
        run_id=gathered.run_id,
        setting=setting,
    )
    watch = BaselineWatch(plan.policy.baseline if baseline is None else baseline)
    reader = RankReader(allowed)
    for place in dict.fromkeys((*planned, *shards, *found)):
        if place in found:
            yield watch.checked(_of_attempt(found[place], reader, known))
        elif place in planned:
            yield _of_absent_job(planned[place], plan.cells, _LOST)
        else:
            yield _of_absent_job(shards[place], plan.cells, _LOST_SHARD)
    if gathered.manifest is None:
        yield from watch.absent()


def _shards_of_suites(
    attempts: Sequence[Attempt], own_plan: AbstractSet[tuple[str, str]]
) -> dict[tuple[str, str], PlannedJob]:
    """All shards of each suite that a shard is there of, unless the folder's own plan has only those that are there.

    Each shard states how many there are. A run of one shard alone leaves the others out of its plan on purpose, but no
    plan of a machine tells what the other machines had to run.
    """
    groups: dict[tuple[str, tuple[str, ...]], set[tuple[str, str]]] = {}
    for attempt in attempts:
        if share := (attempt.record or NO_RECORD).share:
            groups.setdefault((attempt.cell, share.all_names), set()).add((attempt.cell, attempt.suite))
    return {
        (cell, name): PlannedJob(cell=cell, suite=name)
        for (cell, names), here in groups.items()
        if not here <= own_plan
        for name in names
    }


def _torn_suites(attempts: Sequence[Attempt]) -> dict[tuple[str, str], str]:
    """The jobs that share a suite but split it differently, by cell and name, each with its error."""
    splits: dict[tuple[str, str, int], dict[str, str]] = {}
    for attempt in attempts:
        if (share := (attempt.record or NO_RECORD).share) and share.split:
            splits.setdefault((attempt.cell, share.suite, share.count), {})[attempt.suite] = share.split
    return {
        (cell, name): (
            f"The shards {', '.join(sorted(digests))} split {suite} differently: tests may have run twice, or not at "
            "all.\nThey collected different tests, or used different durations.\n"
            "Run them in one run, or give all of them the same file of durations."
        )
        for (cell, suite, _), digests in splits.items()
        if len(set(digests.values())) > 1
        for name in digests
    }


class _Recollected(NamedTuple):
    """How the collections of a job's attempts differ from the first one of its suite."""

    error: str = ""
    notes: tuple[str, ...] = ()


def _compare_collections(attempts: Sequence[Attempt]) -> dict[tuple[str, str], _Recollected]:
    """Compare the collections of all attempts at a suite in a cell, and at all shards of it, by cell and name."""
    suites: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in chain.from_iterable((*job.earlier, job) for job in attempts):
        record = attempt.record or NO_RECORD
        if record.full_collection:
            suite = record.share.suite if record.share else attempt.suite
            suites.setdefault((attempt.cell, suite), []).append(attempt)
    found: dict[tuple[str, str], _Recollected] = {}
    for first, *others in suites.values():
        jobs: dict[tuple[str, str], list[Attempt]] = {}
        for attempt in others:
            jobs.setdefault((attempt.cell, attempt.suite), []).append(attempt)
        found |= {place: _compared(first, own) for place, own in jobs.items()}
    return found


def _compared(first: Attempt, others: Sequence[Attempt]) -> _Recollected:
    from allranks.protocol.parameter_values import REMEDY, VARIABLE, changes  # noqa: PLC0415 - few jobs have several

    errors, notes = [], []
    for other in others:
        found = changes(_collection_of(first), _collection_of(other))
        where = f"{_place_of(other)} than in {_place_of(first)}"
        if found.other_values:
            errors.append(f"Node ids stand for other parameter values in {where}: {named(found.other_values)}.")
        if found.other_variables:
            notes.append(f"Tests have other {VARIABLE} in {where}: {named(found.other_variables)}")
        if found.added or found.removed:
            only = ((found.removed, first), (found.added, other))
            lists = [f"only in {_place_of(one)}: {named(tests)}" for tests, one in only if tests]
            notes.append(f"The collections of {_place_of(first)} and {_place_of(other)} differ; {'; '.join(lists)}")
    error = "\n".join([*errors, "Their results cannot be put together.", REMEDY]) if errors else ""
    return _Recollected(error=error, notes=tuple(notes))


def _collection_of(attempt: Attempt) -> Mapping[str, str]:
    return (attempt.record or NO_RECORD).full_collection


def _place_of(attempt: Attempt) -> str:
    name = f"attempt {attempt.number}"
    return f"{name} of {attempt.suite}" if (attempt.record or NO_RECORD).share else name


def troubled_input(gathered: Gathered) -> Iterator[CellSuite]:
    """The suite that reports what is wrong with the input as a whole: jobs may be absent without a trace."""
    unread = (problem_of_unread(gathered.unread),) if gathered.unread else ()
    if problems := (*gathered.problems, *unread):
        cell, suite = MANIFEST_PLACE
        tests = tuple(trouble("manifest", problem, ExitCode.UNACCOUNTED) for problem in problems)
        yield CellSuite(cell=cell, suite=suite, tests=tests)


def _of_absent_job(job: PlannedJob, cells: Mapping[str, Mapping[str, str | int]], problem: str) -> CellSuite:
    return CellSuite(
        cell=job.cell,
        suite=job.suite,
        image=job.image,
        axes=cells.get(job.cell, {}),
        pack=job.pack,
        tests=(trouble("job", problem, ExitCode.UNACCOUNTED),),
    )


def _of_attempt(attempt: Attempt, reader: RankReader, known: _Known) -> CellSuite:
    record, job = attempt.record or NO_RECORD, known.planned.get((attempt.cell, attempt.suite))
    attempts = Attempts(attempt, known.setting)
    before = [error for each in attempt.earlier for error in _take(attempts, each, reader)]
    files = files_of(attempt, reader)
    return CellSuite(
        cell=attempt.cell,
        suite=attempt.suite,
        axes=known.cells.get(attempt.cell, {}),
        pack=job.pack if job else "",
        tests=(*_troubles(attempt, files, known), *before, *attempts.settled(attempt, files)),
        courses=next((file.courses for file in files if file.courses), {}),
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
            *((_PART.format(attempt.number, attempt.base.folder),) if attempt.base else ()),
            *known.recollection_of(attempt).notes,
            *dict.fromkeys(file.note for file in files if file.note),
        ),
        repeated=record.repeated,
        started=record.started,
        elapsed=record.elapsed,
        seed=record.seed,
        share=record.share,
    )


def _take(attempts: Attempts, earlier: Attempt, reader: RankReader) -> tuple[TestVerdict, ...]:
    """Take in an attempt before the newest one; return the errors of its files, if results in them count."""
    files = files_of(earlier, reader)
    attempts.take(earlier, files)
    return tuple(_troubles_of_files(files)) if attempts.counts(earlier) else ()


def _troubles(attempt: Attempt, files: Sequence[RankFile], known: _Known) -> Iterator[TestVerdict]:
    """The errors of the job itself, apart from its tests."""
    yield from _troubles_of_record(attempt, known)
    yield from _troubles_of_place(attempt, files)
    if text := known.torn.get((attempt.cell, attempt.suite)):
        yield trouble("split", text, ExitCode.UNACCOUNTED)
    if text := known.recollection_of(attempt).error:
        yield trouble("parameters", text, ExitCode.UNACCOUNTED)
    if attempt.record and not attempt.record.error and any(file.is_unfinished for file in files):
        yield trouble(
            "job", f"{JOURNAL} does not record that the job has finished, but job.json does.", ExitCode.UNACCOUNTED
        )
    yield from _troubles_of_files(files)
    yield from _troubles_of_sizes(attempt, files)
    if all(file.rank is not None for file in attempt.files):
        yield from _troubles_of_rank_xml(attempt, files)
    for each in (attempt, *attempt.earlier):  # a failure that is removed from an earlier one would count as settled
        yield from _troubles_of_changes(each)


def _troubles_of_sizes(attempt: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
    """An error if the number of ranks is stated in different ways."""
    first: dict[int, str] = {}
    for who, size in stated_sizes(attempt, files).items():
        first.setdefault(size, who)
    if len(first) > 1:
        said = ", but ".join(f"{who} states {size} rank(s)" for size, who in first.items())
        yield trouble("job", f"{said}.\nMerge the results of one job of one run.", ExitCode.UNACCOUNTED)


def _troubles_of_rank_xml(attempt: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
    """An error for each file of a rank that the job cannot have, and one if ranks have no file.

    A file may be of a rank outside if all its tests have larger worlds of their own, but all ranks of the job have one.
    """
    expected = expected_ranks(attempt, files)
    for file in files:
        if file.problem or file.rank is None or file.rank in expected:
            continue
        if not (file.world_sizes and min(file.world_sizes) > file.rank):
            text = (
                f"{file.path.name} is of rank {file.rank}, which is outside: this job has {len(expected)} rank(s), "
                f"from {expected.start} to {expected.stop - 1}.\nMove it to the job that it belongs to."
            )
            yield trouble(f"rank {file.rank}", text, ExitCode.UNACCOUNTED)
    there = {file.rank for file in (*attempt.files, *attempt.strays)}
    absent = [rank for rank in expected if rank not in there]
    if attempt.files and absent:
        has = "ranks {} have" if absent[1:] else "rank {} has"
        text = f"{has.format(numbers(absent))} no file.\nAdd what is missing, or run the job again."
        yield trouble("job", text, ExitCode.UNACCOUNTED)


def _troubles_of_place(attempt: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
    """An error for each file of another job in the folder of this one; loose XML is of its first file's job."""
    stated = {
        file.path.name: (file.properties.get("allranks.cell", ""), file.properties.get("allranks.suite", ""))
        for file in files
    }
    record = attempt.record or NO_RECORD
    stated["job.json"] = (record.cell, record.suite)
    places = {name: place for name, place in stated.items() if all(place)}
    own = (attempt.cell, attempt.suite) if attempt.folder else next(iter(places.values()), ())
    for name, (cell, suite) in places.items():
        if (cell, suite) != own:
            text = f"{name} is of another job, {cell} / {suite}.\nMove it to the folder of that job."
            yield trouble(name, text, ExitCode.UNACCOUNTED)


def _troubles_of_changes(attempt: Attempt) -> Iterator[TestVerdict]:
    for path in attempt.changed:
        text = f"{path.name} is not the file that allranks wrote: its digest differs from the one in job.json."
        which = (
            f"The records of {JOURNAL} count instead."
            if attempt.files and path not in {file.path for file in attempt.files}
            else "It was read."
        )
        yield trouble(path.name, f"{text}\n{which} Restore the original file.", ExitCode.UNACCOUNTED)


def _troubles_of_files(files: Sequence[RankFile]) -> Iterator[TestVerdict]:
    for file in files:
        if file.problem:
            name = file.path.name if file.rank is None else f"rank {file.rank}"
            text = file.problem if "\n" in file.problem else f"{file.problem}\n{_AGAIN}"
            yield trouble(name, text, ExitCode.UNACCOUNTED)
    names: dict[int, list[str]] = {}
    for file in files:
        if file.rank is not None:
            names.setdefault(file.rank, []).append(file.path.name)
    for rank, (first, *others) in names.items():
        if others:
            text = f"{' and '.join((first, *others))} are both of rank {rank}: the worse outcome of each test counts."
            yield trouble(f"rank {rank}", f"{text}\nKeep one of them in the folder.", ExitCode.UNACCOUNTED)


def has_troubled_files(files: Sequence[RankFile]) -> bool:
    """True if the rank files cannot be trusted."""
    return any(_troubles_of_files(files))


def has_collected_nothing(attempt: Attempt) -> bool:
    """True if an attempt ran nothing because there was nothing to collect, and not because tests were left out."""
    record = attempt.record or NO_RECORD
    left_out = attempt.base or record.deselected or (record.share and record.share.elsewhere)
    return record.collected == () and not left_out


def _troubles_of_record(attempt: Attempt, known: _Known) -> Iterator[TestVerdict]:
    record = attempt.record or NO_RECORD
    if attempt.problem:
        yield trouble("job", attempt.problem, ExitCode.UNACCOUNTED)
    elif attempt.record is None and attempt.folder:  # of XML from elsewhere there is no record
        yield trouble("job", "job.json is missing: the job has not ended, or was killed.", ExitCode.UNACCOUNTED)
    yield from _troubles_of_mixture(attempt, known.run_id)
    if record.error:
        name = "collection" if record.error.kind == "collection" else "job"
        yield trouble(name, record.error.text, code_of_error(record.error.kind))
    elif attempt.record and record.collected is None and not (attempt.files or attempt.strays):
        yield trouble("job", "The job left no results, and job.json does not tell why.", ExitCode.UNACCOUNTED)
    elif has_collected_nothing(attempt):
        yield trouble("collection", _EMPTY, ExitCode.NOTHING_RAN)


def _troubles_of_mixture(attempt: Attempt, run_id: str) -> Iterator[TestVerdict]:
    """Errors for results of another run, in the place of this run's results or beside them."""
    record, remedy = attempt.record or NO_RECORD, "Merge each run in a folder of its own."
    if record.run_id not in {"", run_id}:
        text = f"These results are from the run {record.run_id}, the others from {run_id}: two runs are mixed."
        yield trouble("run", f"{text}\n{remedy}", ExitCode.UNACCOUNTED)
    elif attempt.mixed:
        text = f"There are results of this job of the run {' and '.join(attempt.mixed)} too: they do not count."
        yield trouble("run", f"{text}\n{remedy}", ExitCode.UNACCOUNTED)
