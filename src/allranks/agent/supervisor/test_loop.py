"""Leads gangs through the collected tests, each with a rendezvous of its own.

Launcher tests may overlap: lanes are threads of the supervisor that each run some of them, with a folder of its own for
the files of its ranks, so that only one test at a time writes to a file.
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
from allranks.agent.diagnose.step_outcome import Step, course_of, ends_of, failed_start
from allranks.agent.diagnose.unmatched_calls import words_for_ranks
from allranks.agent.gangs.forks import SESSION_END_TIMEOUT, ForkServerError, LocalNode
from allranks.agent.gangs.gang import ROUNDED_UP, SKIP_GRACES, Deadlines, Gang
from allranks.agent.job_end import JobEnd, JobLimitError, LostGpuError, StopRequestedError
from allranks.agent.job_plugins import functions
from allranks.agent.nodes.node import Node, start_gang
from allranks.agent.output import Output
from allranks.agent.program import ItemOptions, Program, StartRanks, batches
from allranks.agent.record_stream import Journal
from allranks.agent.rendezvous import OWN_GROUPS, Rendezvous, make_rendezvous
from allranks.agent.supervisor.driver_account import DriverAccount
from allranks.protocol.config import AgentConfig, Folders, seed_of_test
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


def assemblies(terms: Sequence[ItemOptions], indices: Iterable[int]) -> Iterator[list[int]]:
    """Split tests into runs of neighbours that one gang may run."""
    for _, neighbours in itertools.groupby(indices, lambda index: terms[index].gang):
        yield list(neighbours)


def joined_by_group(terms: Sequence[ItemOptions], parts: Iterable[Sequence[int]]) -> list[list[int]]:
    """Assemblies of launcher tests, those of one test group as one: a worker runs it, and nothing of it overlaps."""
    joined: dict[tuple[str, int], list[int]] = {}
    for number, indices in enumerate(parts):
        group = terms[indices[0]].test_group
        joined.setdefault((group, -1 if group else number), []).extend(indices)
    return list(joined.values())


def first_assembly(terms: Sequence[ItemOptions], indices: Sequence[int]) -> list[int]:
    """The first of the :func:`assemblies` of some tests; there must be a test."""
    return next(assemblies(terms, indices))


NAMES = 20
"""Most names that one notice lists."""


@dataclass(kw_only=True)
class LoopCounts:
    """These counts need no lock, for each step is atomic in Python."""

    gangs: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # numbers of gangs
    settled: dict[str, bool] = field(default_factory=dict)  # for each test that has run, whether it went wrong
    # The tests that changed some state, by the name of that state, and by what came of it, in words.
    changed: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)
    cold_starts: set[str] = field(default_factory=set)  # why processes could not be started warm, as told so far
    has_quit: bool = False  # whether the user has quit the debugger: no further test begins
    # What went wrong when ranks ended pytest sessions of their own.
    session_problems: list[AgentFailed] = field(default_factory=list)
    running: dict[int, str] = field(default_factory=dict)  # the test of each worker

    @property
    def bad_tests(self) -> int:
        """How many tests went wrong."""
        return sum(self.settled.copy().values())

    def changes(self) -> Iterator[Notice]:
        """State that tests changed, once for each name: every test of a suite may change the same."""
        by_tests: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for (name, remedy), nodeids in self.changed.items():
            by_tests.setdefault((remedy, tuple(nodeids)), []).append(name)
        for (remedy, (first, *others)), names in by_tests.items():
            too = f", and so did {len(others)} other tests" if others else ""
            listed = ", ".join(names[:NAMES])
            yield Notice(nodeid=first, text=f"it changed {listed}{too}; {remedy}", kind="state")


class WorkerLostError(Exception):
    """A worker broke: the outcomes of its tests are unknown."""


def lane_folder(results: Path, lane: int) -> Path:
    """The folder for the files of a worker's ranks."""
    return results / f"lane-{lane}"


@dataclass(kw_only=True)
class DriverWorkers:
    """Workers that run side by side, from their start to their end."""

    count: int  # how many tests may run at a time
    results: Path
    make_worker: Callable[[Path], "TestLoop"]  # makes a worker from the folder for its ranks' files
    # The next tests for a free worker, from one assembly; None if there are no more.
    next_work: Callable[[], Sequence[int] | None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _errors: list[Exception] = field(default_factory=list)

    def run(self) -> None:
        """Run all tests on the workers; raises the first error of one."""
        threads = [threading.Thread(target=self._be_lane, args=(number,)) for number in range(1, self.count + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _be_lane(self, number: int) -> None:
        try:
            work = self._next()
            if work is None:
                return
            folder = lane_folder(self.results, number)
            folder.mkdir(exist_ok=True)
            worker = self.make_worker(folder)
            while work is not None:
                worker.run_some(work)
                work = self._next()
        except (StopRequestedError, JobLimitError, LostGpuError, ForkServerError) as error:
            self._errors.append(error)
        except Exception:  # noqa: BLE001 - any failure of a worker is the job's result
            self._errors.append(WorkerLostError(traceback.format_exc()))

    def _next(self) -> Sequence[int] | None:
        """The next tests; None after an error."""
        with self._lock:
            return None if self._errors else self.next_work()


End = Passed | RankEnded | FailureCourse


class Plan(Protocol):
    """Decides which repetitions a test loop runs, and takes what they come to."""

    def steps(self, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The repetitions in one gang: each test, and the one after it."""

    def begin(self, index: int) -> int:
        """The number of the repetition of a test that begins now."""

    def drawn(self, command: RunTest, number: int) -> RunTest:
        """The command of a test for its repetition of this number."""

    def disturbance(self, command: RunTest, ranks: int, *, is_joining: bool) -> str:
        """What plug-ins do to ranks from outside while they join their gang, or run a test; empty for nothing."""

    def take(self, started: TestStarted, ends: Sequence[End]) -> None:
        """Take the records of a repetition that has ended."""

    def note(self, record: GangStarted | GangReady | LeftBehind | Notice) -> None:
        """Take a record that every repetition may bring."""


class RepetitionJournal:
    """The journal of a test loop that repeats tests: it holds the records of a repetition until the next one begins."""

    def __init__(self, journal: Journal, repetitions: Plan) -> None:
        self._journal = journal
        self._repetitions = repetitions
        self._started: TestStarted | None = None
        self._ends: list[End] = []

    def write(self, record: Record) -> None:
        match record:
            case TestStarted():
                self.conclude()
                self._started = record
            case Passed() | RankEnded() | FailureCourse():
                self._ends.append(record)
            case GangStarted() | GangReady() | LeftBehind() | Notice():
                self._repetitions.note(record)
            case _:
                self._journal.write(record)

    def drop(self) -> None:
        """Forget the repetition under way: the job is ended from outside before its outcome."""
        if not self._ends:
            self._started = None

    def conclude(self) -> None:
        """Have the repetition counted whose gang has ended, or goes on with another."""
        if self._started is not None:
            self._repetitions.take(self._started, self._ends)
        self._started, self._ends = None, []


DRIVER_MARGIN = 5.0
"""Seconds that a driver gets beyond its ranks' limit, to read their stacks, to stop them and to tear down."""

_COMMAND = 1000
"""Most characters of a command line that a record keeps."""

FRESH_START = 120.0
"""Seconds for ranks that are no forks to import torch and their file: a second or two each on an idle host."""

_RESTORED = "that was restored"
_REPLACED = "its ranks ran no other test"
"""What came of state that a test had changed."""

QUIT = "q in the debugger"
"""Why tests did not run after the user has quit the debugger."""

MANY_FORKS = 60
"""From this many forks on, making them cheaper pays; it takes the better part of a second."""


class WithCommands:
    """A journal in which each failure of a script's test ends with the command that runs it without allranks."""

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
    """The supervisor's view of its job."""

    config: AgentConfig
    folders: Folders
    journal: Journal
    end: JobEnd


OfLane = Callable[[Path], LocalNode]
"""Returns this node for ranks with their files in another folder."""


class TestLoop:
    """Runs every collected test on every rank.

    Args:
        count: Counts shared with other test loops; None if this is the only one.
        repetitions: Those of the tests; None to run each test once.

    Attributes:
        program: The tests.
        job: Their job.
    """

    def __init__(
        self,
        program: Program,
        nodes: Sequence[Node],
        job: SupervisedJob,
        count: LoopCounts | None = None,
        repetitions: Plan | None = None,
    ) -> None:
        self.program = program
        self.job = job
        self._nodes = nodes
        self._config = job.config
        self._folders = job.folders
        self._repetitions = repetitions
        self._counting = RepetitionJournal(job.journal, repetitions) if repetitions else None
        self._journal = WithCommands(self._counting or job.journal, program)
        self._count = LoopCounts() if count is None else count
        self._has_many_forks = False
        self._index = 0
        self._number = 1
        self._runs_again = False
        self._preload: dict[str, None] = {}
        self._driver: DriverAccount | None = None

    @property
    def settled(self) -> dict[str, bool]:
        """For each test that has run, whether it went wrong."""
        return self._count.settled

    @property
    def session_problem(self) -> AgentFailed | None:
        """What went wrong first when ranks ended pytest sessions of their own; None for nothing."""
        return next(iter(self._count.session_problems), None)

    @property
    def _current(self) -> str:
        """The node id of the test that runs, or is about to."""
        return self.program.tests[self._index]

    def _shares_ranks(self, index: int) -> bool:
        """Whether another test may run in the processes of this one, which end with it if it starts its own ranks."""
        return self._driver is None and self.program.options[index].shares_ranks

    @property
    def _has_ranks(self) -> bool:
        """Whether the gang's processes are ranks, and not a driver or a test that starts some."""
        return self._driver is None and not self._config.launches_ranks

    def run_all(self, of_lane: OfLane | None) -> None:
        """Run the tests to the end, or until ``-x``, ``--maxfail`` or the user of a debugger stops the job.

        Args:
            of_lane: Makes the node of a worker for overlapping launcher tests; None if they do not overlap.

        Raises:
            StopRequestedError: The job was ended from outside.
            JobLimitError: The job's time is up.
            LostGpuError: A GPU no longer computes; the tests that are left have no outcome.
            NodeLostError: A node is lost; the tests that are left have no outcome.
            ForkServerError: The fork server is gone or does not answer.
            WorkerLostError: A worker broke; its test and those that are left have no outcome.
        """
        run_tests = next(functions(self._config, "run_tests"), None)
        if run_tests is None:
            self._run_in_order(of_lane)
        else:
            run_tests(self, of_lane)
        for notice in self._count.changes():
            self._journal.write(notice)

    def worker(
        self, results: Path, of_lane: OfLane | None, program: Program | None = None, plan: Plan | None = None
    ) -> "TestLoop":
        """Another loop for tests of the job, which shares the counts of this one.

        Args:
            results: The folder for the files of its ranks.
            of_lane: Makes its node; None to have the nodes of this loop.
            program: Its tests; None for those of this loop.
            plan: Decides how it repeats tests; None to run each once.
        """
        job = replace(self.job, folders=replace(self._folders, results=results))
        nodes = [of_lane(results)] if of_lane else self._nodes
        return TestLoop(program or self.program, nodes, job, self._count, plan)

    def _run_in_order(self, of_lane: OfLane | None) -> None:
        self._has_many_forks = self._forks_ahead() >= MANY_FORKS
        remaining = list(range(len(self.program.tests)))
        if of_lane:  # Launcher tests come first: each other test between them would wait for all that overlap.
            remaining.sort(key=lambda index: not self.program.options[index].launches)
        while remaining and not self._is_over():
            launchers = self._launchers_ahead(remaining) if of_lane else []
            if of_lane and len(launchers) > 1:
                remaining[: sum(map(len, launchers))] = self._run_in_lanes(of_lane, launchers)
            else:
                del remaining[: self._run(first_assembly(self.program.options, remaining))]
        self._leave_out(remaining)

    def _forks_ahead(self) -> int:
        """Estimate the forks on this node, drivers and the ranks of launcher tests included."""
        terms = self.program.options
        ranks = len(self._config.local_ranks)
        return sum(ranks + terms[indices[0]].launches for indices in assemblies(terms, range(len(terms))))

    def run_some(self, indices: Sequence[int]) -> None:
        if self._counting is not None:
            try:
                self._run_gang(indices)
            except StopRequestedError:
                self._counting.drop()
                raise
            finally:
                self._counting.conclude()
            return
        remaining = list(indices)
        while remaining and not self._is_over():
            del remaining[: self._run(first_assembly(self.program.options, remaining))]
        self._leave_out(remaining)

    def _leave_out(self, remaining: Sequence[int]) -> None:
        reason = QUIT if self._count.has_quit else f"-x or --maxfail, {self._count.bad_tests} bad"
        for part in batches([self.program.tests[index] for index in remaining]):
            self._journal.write(NotRun(tests=part, reason=reason))

    def _launchers_ahead(self, remaining: Sequence[int]) -> list[list[int]]:
        terms = self.program.options
        return list(assemblies(terms, itertools.takewhile(lambda index: terms[index].launches, remaining)))

    def _run_in_lanes(self, of_lane: OfLane, launchers: Sequence[list[int]]) -> list[int]:
        """Run assemblies side by side; return the tests that did not begin because the job stops."""
        waiting = deque(joined_by_group(self.program.options, launchers))

        def next_work() -> Sequence[int] | None:
            return None if self._is_over() or not waiting else waiting.popleft()

        DriverWorkers(
            count=min(self._config.overlap, len(waiting)),
            results=self._folders.results,
            make_worker=lambda results: self.worker(results, of_lane),
            next_work=next_work,
        ).run()
        return [index for indices in waiting for index in indices]

    def _is_over(self) -> bool:
        is_stopped = bool(self.program.maxfail) and self._count.bad_tests >= self.program.maxfail
        return is_stopped or self._count.has_quit

    def _run(self, indices: Sequence[int]) -> int:
        """Run tests until one goes wrong, then its permitted reruns; return how many tests have run."""
        done = self._run_gang(indices)
        delay = self.program.options[self._index].delay
        while self._runs_again:
            linux.is_readable(self.job.end.fileno(), min(delay, self.job.end.remaining()))
            self.job.end.check()
            self._runs_again = False
            self._number += 1
            self._run_gang([self._index])
        self._number = 1
        return done

    def _run_gang(self, indices: Sequence[int]) -> int:
        """Start a gang for some tests and run as many as it can; return how many tests have run."""
        self._index = indices[0]
        terms = self.program.options[indices[0]]
        # Without a process group, too: a fixture of the suite may make one.
        self._driver = DriverAccount(self._journal, self._config) if terms.launches else None
        groups = 1 if terms.has_process_group else OWN_GROUPS
        number = next(self._count.gangs)
        shared = self._folders.of_gang(number)
        rendezvous = make_rendezvous(self._config, shared, groups=groups) if self._has_ranks else None
        try:
            gang = self._start(number, rendezvous, indices)
            try:
                return self._lead(gang, indices, rendezvous if terms.has_process_group else None)
            except StopRequestedError as error:
                step = gang.abort(str(error))
                step.end_from_outside(str(error))
                self._record_bad(gang, step)
                raise
            except JobLimitError as error:
                self._record_bad(gang, gang.give_up(str(error)))
                raise
            finally:
                self._close(gang)
        finally:
            if rendezvous is not None:
                rendezvous.release()

    def _start(self, number: int, rendezvous: Rendezvous | None, indices: Sequence[int]) -> Gang:
        terms = self.program.options[indices[0]]
        request = StartRanks(
            gang=number,
            url=rendezvous.url if rendezvous and terms.has_process_group else None,
            environment=rendezvous.environment if rendezvous else {},
            preload=tuple(self._preload),
            launches=self._driver is not None,
            has_many_forks=self._has_many_forks,
            fresh={index: self.program.tests[index] for index in indices} if terms.is_fresh else {},
        )
        self._has_many_forks = False
        # What starts ranks starts them on its own node.
        ranks = start_gang(self._nodes if self._has_ranks else self._nodes[:1], request)
        self._journal.write(
            GangStarted(gang=number, pids=tuple(pid for node_ranks in ranks for pid in node_ranks.pids))
        )
        may_be_held = self._config.pdb_rank is not None
        start_up = FRESH_START if terms.is_fresh else 0.0
        return Gang(ranks, limits=self._config.limits, end=self.job.end, may_be_held=may_be_held, start_up=start_up)

    def _close(self, gang: Gang) -> None:
        self._preload.update(gang.imported)
        self._count.has_quit = self._count.has_quit or gang.has_quit
        for process in gang.close():
            command = clipped(process.command, _COMMAND)
            if process.has_survived:
                text = f"process {process.pid}, which a rank left behind, could not be killed: {command}"
                self._journal.write(Notice(nodeid=self._current, text=text))
                continue
            self._journal.write(LeftBehind(nodeid=self._current, rank=process.rank, pid=process.pid, command=command))

    def _lead(self, gang: Gang, indices: Sequence[int], rendezvous: Rendezvous | None) -> int:
        once = zip(indices, [*indices[1:], None], strict=True)
        steps = iter(once if self._repetitions is None else self._repetitions.steps(indices))
        first = self._begin(*next(steps))
        with gang.disturbed(self._disturbance(first[0], is_joining=True)):
            start = gang.start()
        if rendezvous is not None:
            rendezvous.release()
        if start.lost_gpus:
            rank, trouble = next(iter(start.lost_gpus.items()))
            msg = f"before {self._current}, the GPU of rank {rank} no longer computes: {trouble}"
            raise LostGpuError(msg)
        if start.leader is not None:
            self._journal.write(TestStarted(nodeid=self._current, seed=first[0].seed, number=first[1]))
            self._record(gang, failed_start(start, start.leader))
            gang.condemn()
            return 1
        self._journal.write(GangReady())
        others = (self._begin(*step) for step in steps)
        for done, (command, number) in enumerate(itertools.chain([first], others), start=1):
            may = may_disagree(self._current, self._config.mixed_skip)
            self._journal.write(TestStarted(nodeid=self._current, seed=command.seed, may_disagree=may, number=number))
            self._count.running[id(self)] = self._current
            with gang.disturbed(self._disturbance(command, is_joining=False)):
                step = gang.run(command, self._deadlines(command.index))
            mismatch = step.compare_calls() if self.program.options[command.index].shares_ranks else None
            self._count.has_quit = self._count.has_quit or gang.has_quit
            self._record(gang, step)
            if step.leader is not None:
                gang.condemn()
                return done
            if mismatch is not None:
                text = f"calls differ: {mismatch.message}"
                self._journal.write(Notice(nodeid=self._current, text=text, kind="calls"))
            if (
                gang.has_quit
                or mismatch is not None
                or (not step.is_clean and not self.program.options[command.index].is_skipped)
            ):
                break
        session_end = SESSION_END_TIMEOUT if self.program.options[indices[0]].is_fresh else 0.0
        self._record_bad(gang, gang.end(session_end))
        if gang.session_problem is not None:
            self._count.session_problems.append(gang.session_problem)
        return done

    def _begin(self, index: int, following: int | None) -> tuple[RunTest, int]:
        """The command for the next test or repetition, and the number of this try at it."""
        self._index = index
        seed = seed_of_test(self._config.seed, self._current)
        command = RunTest(index=index, nodeid=self._current, following=following, seed=seed)
        if self._repetitions is not None:
            self._number = self._repetitions.begin(index)
            command = self._repetitions.drawn(command, self._number)
        return command, self._number

    def _disturbance(self, command: RunTest, *, is_joining: bool) -> str:
        """What disturbs the ranks that run a test themselves; empty for nothing."""
        if self._repetitions is None or not self._has_ranks:
            return ""
        return self._repetitions.disturbance(command, self._config.world_size, is_joining=is_joining)

    def _deadlines(self, index: int) -> Deadlines:
        terms = self.program.options[index]
        may = may_disagree(self.program.tests[index], self._config.mixed_skip)
        skip = None if may else SKIP_GRACES * self._config.limits.peer_grace
        if terms.launches:
            return self._driver_deadlines(terms, skip)
        return Deadlines(limit=terms.limit, skip=skip, of_plugin=terms.plugin_limit)

    def _driver_deadlines(self, terms: ItemOptions, skip: float | None) -> Deadlines:
        """A driver's time: one limit for set-up, which may include a rendezvous, and a new one once its ranks start."""
        limits = self._config.limits
        margin = DRIVER_MARGIN + limits.peer_grace
        set_up = max(terms.limit, limits.limit("process_group").plus(ROUNDED_UP), key=attrgetter("seconds"))
        anew = terms.limit.plus(margin)
        return Deadlines(limit=set_up.plus(margin), anew=anew, skip=skip, of_plugin=terms.plugin_limit)

    def _record_bad(self, gang: Gang, step: Step) -> None:
        """Report only the bad outcomes of a step that is recorded under the current test's name."""
        bad = [each for each in step.outcomes if each.outcome.is_bad]
        self._record(gang, replace(step, outcomes=bad))

    def _record(self, gang: Gang, step: Step) -> None:
        """Report what a step has shown of the current test, and count the test."""
        if self._driver is not None:
            is_bad = self._driver.settle(gang, self._current, step)
            if is_bad and self._driver.found_port_in_use:
                self._name_neighbours(self._current)
        else:
            is_bad = self._report_ranks(step, gang.take_output(self._current))
        self._report_processes(step)
        if self._shares_ranks(self._index):
            for remedy, names in ((_RESTORED, step.restored), (_REPLACED, step.left)):
                for name in sorted(names):
                    self._count.changed.setdefault((name, remedy), {})[self._current] = None
        self._settle({each.outcome for each in step.outcomes}, is_bad=is_bad)

    def _report_ranks(self, step: Step, outputs: Mapping[int, Output]) -> bool:
        """Report the outcomes of ranks that run the test themselves; returns whether they are bad."""
        ends = ends_of(step, self._current, self._config.ranks, outputs)
        course = course_of(step, self._current, outputs)
        for record in ends if course is None else (course, *ends):
            self._journal.write(record)
        may = may_disagree(self._current, self._config.mixed_skip)
        return step.leader is not None or (disagree({each.outcome for each in ends}) and not may)

    def _report_processes(self, step: Step) -> None:
        """Report what happened to processes that ranks had started."""
        for rank in sorted(step.strangers):
            text = f"a process that rank {rank} had forked went on in its place; what it reported was left out"
            self._journal.write(Notice(nodeid=self._current, text=text))
        for words, ranks in step.unchecked_children.items():
            where = f" (on {words_for_ranks(ranks)})" if self._config.ranks > 1 else ""
            self._journal.write(Notice(nodeid=self._current, text=f"{words}, and the test passed{where}"))
        for reason in dict.fromkeys(reason for outcome in step.outcomes for reason in outcome.cold_starts):
            if reason not in self._count.cold_starts:
                self._count.cold_starts.add(reason)
                text = f'start_children = "warm" has no effect on some processes: {reason}'
                self._journal.write(Notice(nodeid=self._current, text=text))

    def _settle(self, outcomes: AbstractSet[Outcome], *, is_bad: bool) -> None:
        """Count the test, unless it will run again: another worker would stop the job for it."""
        reruns = 0 if self._count.has_quit else self.program.options[self._index].reruns
        self._runs_again = self._runs_again or (is_bad and self._number <= reruns)
        if self._runs_again:
            return
        settled = self._count.settled
        # As in the report, a rerun that is skipped does not clear the bad outcome before it.
        is_rerun = self._number > 1 and self._repetitions is None
        if outcomes or self._current not in settled:
            is_bad = is_bad or (is_rerun and outcomes == {Outcome.SKIPPED})
            settled[self._current] = settled.get(self._current, False) or is_bad

    def _name_neighbours(self, nodeid: str) -> None:
        """Name the tests beside which a port was in use: one of them may have it."""
        others = [each for number, each in self._count.running.copy().items() if number != id(self) and each != nodeid]
        if others:
            text = (
                f"a port that it needs was in use while {', '.join(others[:NAMES])} ran beside it, or had just ended; "
                "name tests that share a fixed port in one of the suite's test_groups, and they do not overlap"
            )
            self._journal.write(Notice(nodeid=nodeid, text=text))
