"""Runs the collected tests on gangs, each with its own rendezvous.

Multi-process tests may overlap: workers are threads of the supervisor that each run some of them. A worker has its own
folder for the files of its ranks, so that only one test at a time writes to a file.
"""

import itertools
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from allranks.agent import linux
from allranks.agent.channel import RunTest
from allranks.agent.diagnose.step_outcome import Step, failed_start, outcome_records, timeline_record
from allranks.agent.diagnose.unmatched_calls import format_ranks
from allranks.agent.gangs.forks import SESSION_END_TIMEOUT, ForkServerError, LocalNode
from allranks.agent.gangs.gang import SKIP_GRACES, STORE_ROUNDING, Deadlines, Gang
from allranks.agent.job_end import JobEnd, JobLimitError, StopRequestedError
from allranks.agent.job_plugins import functions
from allranks.agent.nodes.node import Node, start_gang
from allranks.agent.output import Output
from allranks.agent.program import ItemOptions, Program, StartRanks, batches
from allranks.agent.record_stream import Journal
from allranks.agent.rendezvous import OWN_GROUPS, Rendezvous, make_rendezvous
from allranks.agent.supervisor.launcher_outcomes import LauncherOutcomes
from allranks.protocol.config import AgentConfig, Folders, seed_of_test
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import Outcome, disagree, may_disagree
from allranks.protocol.records import (
    AgentFailed,
    FailureCourse,
    GangReady,
    GangStarted,
    LeftBehind,
    Notice,
    NotRun,
    Passed,
    RankEnded,
    Record,
    TestStarted,
)
from allranks.protocol.xml_text import clipped


def split_by_gang(options: Sequence[ItemOptions], indices: Iterable[int]) -> Iterator[list[int]]:
    """Split tests into batches of consecutive tests that one gang may run."""
    for _, batch in itertools.groupby(indices, lambda index: options[index].gang):
        yield list(batch)


def first_batch(options: Sequence[ItemOptions], indices: Sequence[int]) -> list[int]:
    """Return the first batch of :func:`split_by_gang`; there must be a test."""
    return next(split_by_gang(options, indices))


def join_test_groups(options: Sequence[ItemOptions], batches: Iterable[Sequence[int]]) -> list[list[int]]:
    """Join the batches of each test group: one worker runs all of them, so that they do not overlap."""
    joined: dict[tuple[str, int], list[int]] = {}
    for number, batch in enumerate(batches):
        group = options[batch[0]].test_group
        joined.setdefault((group, -1 if group else number), []).extend(batch)
    return list(joined.values())


_MAX_NAMES = 20
"""Names in one notice."""


@dataclass(kw_only=True)
class LoopState:
    """State that the test loops of a job share. It needs no lock, because each of its updates is atomic in Python."""

    gangs: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # numbers of gangs
    results: dict[str, bool] = field(default_factory=dict)  # for each test that has run, whether it failed
    # The tests that changed some state, or whose calls failed, by the name of that and the consequence.
    changed: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)
    cold_starts: set[str] = field(default_factory=set)  # reported reasons why processes could not be started warm
    has_quit: bool = False  # the user has quit the debugger: no further test begins
    # Failures of ranks to end their own pytest sessions.
    session_problems: list[AgentFailed] = field(default_factory=list)
    running: dict[int, str] = field(default_factory=dict)  # the test of each worker

    @property
    def failed_tests(self) -> int:
        """The number of tests that failed."""
        return sum(self.results.copy().values())

    def changes(self) -> Iterator[Notice]:
        """Yield notices about what :attr:`changed` has; names with the same tests share one notice."""
        by_tests = by_key(((why, tuple(nodeids)), name) for (name, why), nodeids in self.changed.items())
        for (consequence, (first, *others)), names in by_tests.items():
            too = f", and so did {len(others)} other test{'s' if len(others) > 1 else ''}" if others else ""
            listed = ", ".join(names[:_MAX_NAMES])
            yield Notice(nodeid=first, text=consequence.format(f"{listed}{too}"), kind="state")


class WorkerLostError(Exception):
    """A worker failed: the outcomes of its tests are unknown."""


class LostGpuError(Exception):
    """A GPU that passed the health check of the job has failed since; the message names it."""


def worker_folder(results: Path, number: int) -> Path:
    """Return the folder for the files of a worker's ranks."""
    return results / f"worker-{number}"


@dataclass(kw_only=True)
class LauncherWorkers:
    """Threads that run multi-process tests at the same time."""

    count: int
    results: Path
    make_worker: Callable[[Path], "TestLoop"]  # makes a worker from the folder for its ranks' files
    # Returns a batch of tests for an idle worker; None if there are no more.
    next_batch: Callable[[], Sequence[int] | None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _errors: list[Exception] = field(default_factory=list)

    def run(self) -> None:
        """Run all tests; raises the first error of a worker."""
        threads = [threading.Thread(target=self._run_worker, args=(number,)) for number in range(1, self.count + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run_worker(self, number: int) -> None:
        try:
            batch = self._next()
            if batch is None:
                return
            folder = worker_folder(self.results, number)
            folder.mkdir(exist_ok=True)
            worker = self.make_worker(folder)
            while batch is not None:
                worker.run_some(batch)
                batch = self._next()
        except (StopRequestedError, JobLimitError, LostGpuError, ForkServerError) as error:
            self._errors.append(error)
        except Exception:  # noqa: BLE001 - any failure of a worker is the job's result
            self._errors.append(WorkerLostError(traceback.format_exc()))

    def _next(self) -> Sequence[int] | None:
        with self._lock:
            return None if self._errors else self.next_batch()


RepetitionRecord = Passed | RankEnded | FailureCourse
"""A record of what one repetition of a test did."""


class RepetitionPlan(Protocol):
    """Decides which repetitions a test loop runs, and receives their results."""

    def steps(self, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the repetitions of one gang: the index of each test, and of the test after it."""

    def begin(self, index: int) -> int:
        """Start a repetition of a test, and return its number."""

    def drawn(self, command: RunTest, number: int) -> RunTest:
        """Return the command for the repetition of this number."""

    def disturbance(self, command: RunTest, ranks: int, *, is_joining: bool) -> str:
        """Return how plug-ins disturb ranks that join their gang, or run a test; empty for no disturbance."""

    def take(self, started: TestStarted, ends: Sequence[RepetitionRecord]) -> None:
        """Receive the records of a repetition that has ended."""

    def note(self, record: GangStarted | GangReady | LeftBehind | Notice) -> None:
        """Receive a record that is not an outcome."""


class RepetitionJournal:
    """The journal of a test loop that repeats tests: it holds the records of a repetition until the next one begins."""

    def __init__(self, journal: Journal, plan: RepetitionPlan) -> None:
        self._journal = journal
        self._plan = plan
        self._started: TestStarted | None = None
        self._ends: list[RepetitionRecord] = []

    def write(self, record: Record) -> None:
        match record:
            case TestStarted():
                self.conclude()
                self._started = record
            case Passed() | RankEnded() | FailureCourse():
                self._ends.append(record)
            case GangStarted() | GangReady() | LeftBehind() | Notice():
                self._plan.note(record)
            case _:
                self._journal.write(record)

    def drop(self) -> None:
        """Drop the current repetition if it has no outcome yet: the job is being stopped from outside."""
        if not self._ends:
            self._started = None

    def conclude(self) -> None:
        """Pass on the current repetition, which has ended."""
        if self._started is not None:
            self._plan.take(self._started, self._ends)
        self._started, self._ends = None, []


LAUNCHER_MARGIN = 5.0
"""Seconds that a launcher gets beyond its ranks' limit, to read their stacks, to stop them and to tear down."""

_COMMAND_LENGTH = 1000
"""Characters of a command line in a record."""

FRESH_START = 120.0
"""Seconds for ranks that are not forks to import torch and their file: a second or two each on an idle host."""

_RESTORED = "it changed {}; that was restored"
_REPLACED = "it changed {}; its ranks were replaced"
_CALLS_FAILED = "it made {}; its ranks were replaced"
"""The consequences of what a test has done."""

_FAILED_CALLS = "torch.distributed calls that raised an error or were not logged"

QUIT = "q in the debugger"
"""Why tests did not run after the user has quit the debugger."""

MANY_FORKS = 60
"""From this number of forks on, it pays to make them cheaper, which takes almost a second."""


class RerunCommands:
    """A journal that adds to each failure of a script's test the command that runs the test without allranks."""

    def __init__(self, journal: Journal, program: Program) -> None:
        self._journal = journal
        self._scripts = {test for test, how in zip(program.tests, program.options, strict=False) if how.is_script}

    def write(self, record: Record) -> None:
        if isinstance(record, RankEnded) and record.outcome.is_bad and not record.consequence:
            record = replace(record, text=self._with_command(record))
        self._journal.write(record)

    def _with_command(self, ended: RankEnded) -> str:
        if ended.nodeid not in self._scripts:
            return ended.text
        file, *names = ended.nodeid.split("::")
        return f"{ended.text}\n\nWithout allranks: python {file} {'.'.join(names)}".lstrip("\n")


@dataclass(frozen=True, kw_only=True)
class SupervisedJob:
    """The job of a test loop."""

    config: AgentConfig
    folders: Folders
    journal: Journal
    end: JobEnd


Nodes = tuple[LocalNode, *tuple[Node, ...]]
"""The nodes of a job, this one first."""


class TestLoop:
    """Runs every collected test on every rank.

    Args:
        program: The tests.
        nodes: Where their ranks run.
        job: Their job.
        state: State shared with other test loops; None if this is the only one.
        plan: How the tests are repeated; None to run each test once.
    """

    def __init__(
        self,
        program: Program,
        nodes: Nodes,
        job: SupervisedJob,
        state: LoopState | None = None,
        plan: RepetitionPlan | None = None,
    ) -> None:
        self.program = program
        self.job = job
        self._nodes = nodes
        self._config = job.config
        self._folders = job.folders
        self._plan = plan
        self._repetitions = RepetitionJournal(job.journal, plan) if plan else None
        self._journal = RerunCommands(self._repetitions or job.journal, program)
        self._state = LoopState() if state is None else state
        self._has_many_forks = False
        self._index = 0
        self._number = 1
        self._reruns = False
        self._preload: dict[str, None] = {}
        self._launcher: LauncherOutcomes | None = None

    @property
    def results(self) -> dict[str, bool]:
        """For each test that has run, whether it failed."""
        return self._state.results

    @property
    def session_problem(self) -> AgentFailed | None:
        """The first failure of a rank to end its own pytest session."""
        return next(iter(self._state.session_problems), None)

    @property
    def _current(self) -> str:
        """The node id of the test that runs, or is about to."""
        return self.program.tests[self._index]

    @property
    def _options(self) -> ItemOptions:
        """The options of the test that runs, or is about to."""
        return self.program.options[self._index]

    @property
    def _may_disagree(self) -> bool:
        """Whether some ranks of the current test may skip while others run."""
        return may_disagree(self._current, self._config.mixed_skip)

    @property
    def _has_ranks(self) -> bool:
        """Whether the gang's processes are ranks, and not a launcher or a test that starts some."""
        return self._launcher is None and not self._config.launches_ranks

    @property
    def overlaps(self) -> bool:
        """Whether multi-process tests may run at the same time."""
        return self._config.overlap > 1 and self._config.nodes == 1

    def run_all(self) -> None:
        """Run the tests to the end, or until ``-x``, ``--maxfail`` or the user of a debugger stops the job.

        Raises:
            StopRequestedError: The job was ended from outside.
            JobLimitError: The job's time is up.
            LostGpuError: A GPU no longer computes; the remaining tests have no outcome.
            NodeLostError: A node is lost; the remaining tests have no outcome.
            ForkServerError: The fork server is gone or does not answer.
            WorkerLostError: A worker failed; its test and the remaining ones have no outcome.
        """
        run_tests = next(functions(self._config, "run_tests"), None)
        if run_tests is None:
            self._run_in_order()
        else:
            run_tests(self)
        for notice in self._state.changes():
            self._journal.write(notice)

    def worker(self, results: Path, program: Program | None = None, plan: RepetitionPlan | None = None) -> "TestLoop":
        """Return another loop for tests of the job, which shares the state of this one.

        Args:
            results: The folder for the files of its ranks.
            program: Its tests; None for those of this loop.
            plan: How it repeats tests; None to run each once.
        """
        job = replace(self.job, folders=replace(self._folders, results=results))
        local, *others = self._nodes
        nodes: Nodes = (local.with_results_dir(results), *others)
        return TestLoop(program or self.program, nodes, job, self._state, plan)

    def _run_in_order(self) -> None:
        options = self.program.options
        gangs = split_by_gang(options, range(len(options)))
        forks = sum(len(self._config.local_ranks) + options[batch[0]].launches for batch in gangs)
        self._has_many_forks = forks >= MANY_FORKS
        remaining = list(range(len(self.program.tests)))
        if self.overlaps:
            # Multi-process tests come first: any other test between them would wait for all that overlap.
            remaining.sort(key=lambda index: not options[index].launches)
        while remaining and not self._is_over():
            launcher_tests = itertools.takewhile(lambda index: options[index].launches, remaining)
            batches = list(split_by_gang(options, launcher_tests)) if self.overlaps else []
            if len(batches) > 1:
                remaining[: sum(map(len, batches))] = self._run_on_workers(batches)
            else:
                del remaining[: self._run(first_batch(options, remaining))]
        self._skip(remaining)

    def run_some(self, indices: Sequence[int]) -> None:
        if self._repetitions is not None:
            try:
                self._run_gang(indices)
            except StopRequestedError:
                self._repetitions.drop()
                raise
            finally:
                self._repetitions.conclude()
            return
        remaining = list(indices)
        while remaining and not self._is_over():
            del remaining[: self._run(first_batch(self.program.options, remaining))]
        self._skip(remaining)

    def _skip(self, remaining: Sequence[int]) -> None:
        reason = QUIT if self._state.has_quit else f"-x or --maxfail, {self._state.failed_tests} failed"
        for part in batches([self.program.tests[index] for index in remaining]):
            self._journal.write(NotRun(tests=part, reason=reason))

    def _run_on_workers(self, batches: Sequence[list[int]]) -> list[int]:
        """Run batches at the same time; return the tests that did not begin because the job stops."""
        waiting = deque(join_test_groups(self.program.options, batches))

        def next_batch() -> Sequence[int] | None:
            return None if self._is_over() or not waiting else waiting.popleft()

        LauncherWorkers(
            count=min(self._config.overlap, len(waiting)),
            results=self._folders.results,
            make_worker=self.worker,
            next_batch=next_batch,
        ).run()
        return [index for batch in waiting for index in batch]

    def _is_over(self) -> bool:
        is_stopped = bool(self.program.maxfail) and self._state.failed_tests >= self.program.maxfail
        return is_stopped or self._state.has_quit

    def _run(self, indices: Sequence[int]) -> int:
        """Run tests until one fails, and then its permitted reruns; return how many tests have run."""
        done = self._run_gang(indices)
        delay = self._options.delay
        while self._reruns:
            linux.is_readable(self.job.end.fileno(), min(delay, self.job.end.remaining()))
            self.job.end.check()
            self._reruns = False
            self._number += 1
            self._run_gang([self._index])
        self._number = 1
        return done

    def _run_gang(self, indices: Sequence[int]) -> int:
        """Start a gang for some tests and run as many as it can; return how many tests have run."""
        self._index = indices[0]
        options = self._options
        self._launcher = LauncherOutcomes(self._journal, self._config) if options.launches else None
        # A gang without a process group needs a rendezvous, too: a fixture of the suite may create process groups.
        groups = 1 if options.has_process_group else OWN_GROUPS
        number = next(self._state.gangs)
        shared = self._folders.of_gang(number)
        rendezvous = make_rendezvous(self._config, shared, groups=groups) if self._has_ranks else None
        try:
            gang = self._start(number, rendezvous, indices)
            try:
                return self._run_tests(gang, indices, rendezvous if options.has_process_group else None)
            except StopRequestedError as error:
                step = gang.abort(str(error))
                step.abort_terminated_ranks(str(error))
                self._record_failures(gang, step)
                raise
            except JobLimitError as error:
                self._record_failures(gang, gang.stop_at_job_limit(str(error)))
                raise
            finally:
                self._close(gang)
        finally:
            if rendezvous is not None:
                rendezvous.release()

    def _start(self, number: int, rendezvous: Rendezvous | None, indices: Sequence[int]) -> Gang:
        options, runs_once = self._options, self._plan is None and len(indices) == 1
        request = StartRanks(
            gang=number,
            url=rendezvous.url if rendezvous and options.has_process_group else None,
            environment=rendezvous.environment if rendezvous else {},
            preload=tuple(self._preload),
            launches=self._launcher is not None,
            is_kept=options.shares_ranks and not (options.launches and runs_once),
            has_many_forks=self._has_many_forks,
            fresh={index: self.program.tests[index] for index in indices} if options.is_fresh else {},
        )
        self._has_many_forks = False
        # A launcher starts ranks on its own node.
        ranks = start_gang(self._nodes if self._has_ranks else self._nodes[:1], request)
        pids = tuple(pid for node_ranks in ranks for pid in node_ranks.pids)
        self._journal.write(GangStarted(gang=number, pids=pids))
        may_be_debugged = self._config.pdb_rank is not None
        start_up = FRESH_START if options.is_fresh else 0.0
        return Gang(
            ranks,
            limits=self._config.limits,
            journal=self._journal,
            end=self.job.end,
            may_be_debugged=may_be_debugged,
            start_up=start_up,
        )

    def _close(self, gang: Gang) -> None:
        self._preload.update(gang.imported)
        self._state.has_quit = self._state.has_quit or gang.has_quit
        for process in gang.close():
            command = clipped(process.command, _COMMAND_LENGTH)
            if process.has_survived:
                text = f"process {process.pid}, which a rank left behind, could not be killed: {command}"
                self._journal.write(Notice(nodeid=self._current, text=text))
                continue
            self._journal.write(LeftBehind(nodeid=self._current, rank=process.rank, pid=process.pid, command=command))

    def _run_tests(self, gang: Gang, indices: Sequence[int], rendezvous: Rendezvous | None) -> int:
        """Run tests on a gang until one fails, or the gang must be replaced; return how many tests have run."""
        once = zip(indices, [*indices[1:], None], strict=True)
        steps = iter(once if self._plan is None else self._plan.steps(indices))
        first = self._begin(*next(steps))
        with gang.disturbed(self._disturbance(first[0], is_joining=True)):
            start = gang.start()
        if rendezvous is not None:
            rendezvous.release()
        if start.lost_gpus:
            rank, error = next(iter(start.lost_gpus.items()))
            msg = f"the GPU of rank {rank} failed before {self._current}: {error}"
            raise LostGpuError(msg)
        if start.primary_failure is not None:
            self._journal.write(TestStarted(nodeid=self._current, seed=first[0].seed, number=first[1]))
            self._record(gang, failed_start(start, start.primary_failure))
            gang.end_after_failure()
            return 1
        self._journal.write(GangReady())
        others = (self._begin(*step) for step in steps)
        for done, (command, number) in enumerate(itertools.chain([first], others), start=1):
            self._journal.write(
                TestStarted(nodeid=self._current, seed=command.seed, may_disagree=self._may_disagree, number=number)
            )
            self._state.running[id(self)] = self._current
            with gang.disturbed(self._disturbance(command, is_joining=False)):
                step = gang.run(command, self._deadlines())
            mismatch = step.compare_calls() if self._options.shares_ranks else None
            self._state.has_quit = self._state.has_quit or gang.has_quit
            self._record(gang, step)
            if step.primary_failure is not None:
                gang.end_after_failure()
                return done
            if mismatch is not None:
                text = f"calls differ: {mismatch.message}"
                self._journal.write(Notice(nodeid=self._current, text=text, kind="calls"))
            is_clean = step.is_clean or self._options.is_skipped
            if gang.has_quit or mismatch is not None or not is_clean:
                break
        session_end = SESSION_END_TIMEOUT if self.program.options[indices[0]].is_fresh else 0.0
        self._record_failures(gang, gang.end(session_end))
        if gang.session_problem is not None:
            self._state.session_problems.append(gang.session_problem)
        return done

    def _begin(self, index: int, following: int | None) -> tuple[RunTest, int]:
        """Return the command for the next test or repetition, and the number of this attempt."""
        self._index = index
        seed = seed_of_test(self._config.seed, self._current)
        command = RunTest(index=index, nodeid=self._current, following=following, seed=seed)
        if self._plan is not None:
            self._number = self._plan.begin(index)
            command = self._plan.drawn(command, self._number)
        return command, self._number

    def _disturbance(self, command: RunTest, *, is_joining: bool) -> str:
        """Return how plug-ins disturb the ranks that run a test; launchers are not disturbed."""
        if self._plan is None or not self._has_ranks:
            return ""
        return self._plan.disturbance(command, self._config.world_size, is_joining=is_joining)

    def _deadlines(self) -> Deadlines:
        options, limits = self._options, self._config.limits
        skip = None if self._may_disagree else SKIP_GRACES * limits.peer_grace
        if not options.launches:
            return Deadlines(limit=options.limit, skip=skip, plugin_limit=options.plugin_limit)
        # Set-up, which may include a rendezvous, has its own limit; the test's limit counts once ranks start.
        margin = LAUNCHER_MARGIN + limits.peer_grace
        rendezvous = limits.limit("process_group").plus(STORE_ROUNDING)
        set_up = max(options.limit, rendezvous, key=attrgetter("seconds"))
        return Deadlines(
            limit=set_up.plus(margin),
            after_release=options.limit.plus(margin),
            skip=skip,
            plugin_limit=options.plugin_limit,
        )

    def _record_failures(self, gang: Gang, step: Step) -> None:
        """Record only the failures of a step, under the current test."""
        self._record(gang, replace(step, outcomes=[outcome for outcome in step.outcomes if outcome.outcome.is_bad]))

    def _record(self, gang: Gang, step: Step) -> None:
        """Record a step of the current test, and count the test."""
        if self._launcher is not None:
            has_failed = self._launcher.record(gang, self._current, step)
            if has_failed and self._launcher.found_port_in_use:
                self._name_concurrent_tests()
        else:
            has_failed = self._record_ranks(step, gang.take_output(self._current))
        self._record_processes(step)
        if self._launcher is None and self._options.shares_ranks:
            failed_calls = {_FAILED_CALLS} if step.has_failed_calls else ()
            found = ((_RESTORED, step.restored), (_REPLACED, step.not_restored), (_CALLS_FAILED, failed_calls))
            for consequence, names in found:
                for name in sorted(names):
                    self._state.changed.setdefault((name, consequence), {})[self._current] = None
        self._count({outcome.outcome for outcome in step.outcomes}, has_failed=has_failed)

    def _record_ranks(self, step: Step, outputs: Mapping[int, Output]) -> bool:
        """Record the outcomes of ranks that run the test themselves; return whether it has failed."""
        ends = outcome_records(step, self._current, self._config.ranks, outputs)
        timeline = timeline_record(step, self._current, outputs)
        for record in ends if timeline is None else (timeline, *ends):
            self._journal.write(record)
        return step.primary_failure is not None or (disagree({end.outcome for end in ends}) and not self._may_disagree)

    def _record_processes(self, step: Step) -> None:
        """Record notices about processes that ranks had started."""
        for rank in sorted(step.foreign_senders):
            text = f"a process that rank {rank} had forked used the rank's connection; its messages were ignored"
            self._journal.write(Notice(nodeid=self._current, text=text))
        for failure, ranks in step.unchecked_children.items():
            where = f" (on {format_ranks(ranks)})" if self._config.ranks > 1 else ""
            self._journal.write(Notice(nodeid=self._current, text=f"{failure}, but the test passed{where}"))
        for reason in dict.fromkeys(reason for outcome in step.outcomes for reason in outcome.report.cold_starts):
            if reason not in self._state.cold_starts:
                self._state.cold_starts.add(reason)
                text = f'start_children = "warm" has no effect on some processes: {reason}'
                self._journal.write(Notice(nodeid=self._current, text=text))

    def _count(self, outcomes: AbstractSet[Outcome], *, has_failed: bool) -> None:
        """Count the test, unless it will be rerun: another worker could stop the job because of its failure."""
        reruns = 0 if self._state.has_quit else self._options.reruns
        self._reruns = self._reruns or (has_failed and self._number <= reruns)
        if self._reruns:
            return
        results = self._state.results
        # As in the report, a rerun that is skipped does not clear the failure before it.
        is_rerun = self._number > 1 and self._plan is None
        if outcomes or self._current not in results:
            has_failed = has_failed or (is_rerun and outcomes == {Outcome.SKIPPED})
            results[self._current] = results.get(self._current, False) or has_failed

    def _name_concurrent_tests(self) -> None:
        """Name the tests that ran while a port was in use: one of them may have used it."""
        others = [
            nodeid
            for worker, nodeid in self._state.running.copy().items()
            if worker != id(self) and nodeid != self._current
        ]
        if others:
            names = ", ".join(others[:_MAX_NAMES])
            text = (
                f"a port that it needs was in use; {names} ran at the same time or just before. Put tests that share a "
                "fixed port into one of the suite's test_groups, so that they do not overlap"
            )
            self._journal.write(Notice(nodeid=self._current, text=text))
