"""Leads gangs through the collected tests, one test after the other, and writes down what arrives."""

import gc
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import pytest

from allranks.harness import kernel
from allranks.harness.channel import Run
from allranks.harness.collection.markers import Terms
from allranks.harness.config import AgentConfig, Folders
from allranks.harness.events import Journal
from allranks.harness.gangs.arrival import Step
from allranks.harness.gangs.gang import ROUNDED_UP, SKIP_GRACES, Gang, HangupError, JobLimitError, Patience
from allranks.harness.lanes.lane import Work
from allranks.harness.lanes.lanes import Errand, Lanes, LaneTerms
from allranks.harness.launchers.driver_account import DriverAccount
from allranks.harness.launchers.recording import failed_start, record_step
from allranks.harness.nodes.node import Node, Orders, muster_all
from allranks.harness.outcome import disagree, may_disagree
from allranks.harness.ranks.rendezvous import Rendezvous, make_rendezvous
from allranks.harness.signals import held_back

DRIVER_MARGIN = 5.0
"""Seconds that a driver gets beyond what its ranks get, to look at their stacks, to stop them and to tear down."""


MANY_FORKS = 60
"""From so many on it pays to make each cheaper, which takes the better part of a second."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is to be run.

    Attributes:
        items: The collected tests.
        terms: How each of them is run.
        maxfail: The number of bad tests after which the job stops; 0 for none.
    """

    items: Sequence[pytest.Item]
    terms: Sequence[Terms]
    maxfail: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job as its agent holds it.

    Attributes:
        journal: Where the agent's events go.
        stdin: Descriptor whose end-of-file means that the job is over.
        lanes: How launcher tests overlap; None where they do not.
    """

    config: AgentConfig
    folders: Folders
    journal: Journal
    stdin: int
    lanes: LaneTerms | None = None


class Conductor:
    """Runs every collected test on every rank.

    Args:
        program: What to run.
        nodes: Where ranks are started.
        job: The job that it is run for.
    """

    def __init__(self, program: Program, nodes: Sequence[Node], job: Job) -> None:
        self._program = program
        self._nodes = nodes
        self._config = job.config
        self._folders = job.folders
        self._journal = job.journal
        self._stdin = job.stdin
        self._lanes = job.lanes
        self._last_gang = 0
        self._bad_tests = 0
        self._current = ""
        self._preload: dict[str, None] = {}
        self._driver: DriverAccount | None = None

    def run_all(self) -> None:
        """Run the tests until they end, or ``-x`` or ``--maxfail`` says so.

        Raises:
            HangupError: The job was ended from outside.
            JobLimitError: The job's time is up.
            NodeLostError: A node is lost; the tests that are left have no outcome.
            LaneLostError: A lane broke; its test and those that are left have no outcome.
        """
        gc.freeze()
        if self._forks_ahead() >= MANY_FORKS:
            kernel.gather_into_huge_pages()
        with held_back():
            self._run(list(range(len(self._program.items))))

    def _forks_ahead(self) -> int:
        """About how many processes will be forked on this node, drivers and the ranks of launcher tests included."""
        terms = self._program.terms
        ranks = len(self._config.local_ranks)
        return sum(ranks + terms[indices[0]].launches for indices in assemblies(terms, range(len(terms))))

    def run_some(self, work: Work) -> int:
        """See :class:`allranks.harness.lanes.lane.Worker`."""
        self._last_gang = work.first_gang - 1
        bad_before = self._bad_tests
        self._run(list(work.indices))
        return self._bad_tests - bad_before

    def _run(self, remaining: list[int]) -> None:
        while remaining and not self._is_over():
            launchers = self._launchers_ahead(remaining) if self._lanes else []
            if self._lanes and len(launchers) > 1:
                remaining[: sum(map(len, launchers))] = self._run_in_lanes(self._lanes, launchers)
            else:
                done = self._run_gang(first_assembly(self._program.terms, remaining))
                del remaining[:done]
        if remaining:
            nodeids = [self._nodeid(index) for index in remaining]
            self._journal.write("not_run", tests=nodeids, reason=f"-x or --maxfail, {self._bad_tests} bad")

    def _launchers_ahead(self, remaining: Sequence[int]) -> list[list[int]]:
        """The assemblies of launcher tests that come next."""
        terms = self._program.terms
        return list(assemblies(terms, itertools.takewhile(lambda index: terms[index].launches, remaining)))

    def _run_in_lanes(self, lanes: LaneTerms, launchers: Sequence[list[int]]) -> list[int]:
        """Run assemblies side by side; returns the tests that were not begun, because the job is to stop."""
        waiting = deque(launchers)

        def next_work() -> Work | None:
            if not waiting or self._is_over():
                return None
            indices = waiting.popleft()
            return Work(indices=indices, first_gang=self._reserve_gangs(len(indices)))

        Lanes(lanes, Errand(next_work=next_work, note_bad=self._note_bad)).run()
        return [index for indices in waiting for index in indices]

    def _reserve_gangs(self, count: int) -> int:
        """The first of some numbers that no other gang gets."""
        first = self._last_gang + 1
        self._last_gang += count
        return first

    def _note_bad(self, count: int) -> None:
        self._bad_tests += count

    def _is_over(self) -> bool:
        return bool(self._program.maxfail) and self._bad_tests >= self._program.maxfail

    def _run_gang(self, indices: Sequence[int]) -> int:
        """Start a gang for some tests and lead it as far as it goes; returns how many tests have run."""
        self._current = self._nodeid(indices[0])
        terms = self._program.terms[indices[0]]
        rendezvous = make_rendezvous(self._config, self._folders.shared) if terms.has_process_group else None
        self._driver = self._account() if terms.launches else None
        try:
            gang = self._start(rendezvous)
            try:
                return self._lead(gang, indices, rendezvous)
            except HangupError as error:
                self._record_bad(gang, gang.abort(str(error)))
                raise
            except JobLimitError as error:
                self._record_bad(gang, gang.give_up(str(error)))
                raise
            finally:
                self._close(gang)
        finally:
            if rendezvous is not None:
                rendezvous.joined()

    def _account(self) -> DriverAccount:
        return DriverAccount(self._folders.results, self._journal, self._config)

    def _start(self, rendezvous: Rendezvous | None) -> Gang:
        number = self._reserve_gangs(1)
        orders = Orders(
            gang=number,
            url=rendezvous.url if rendezvous else None,
            environment=rendezvous.environment if rendezvous else {},
            first_test=self._current,
            preload=tuple(self._preload),
            launches=self._driver is not None,
        )
        # A driver starts its ranks on the node that it is on.
        crews = muster_all(self._nodes[:1] if orders.launches else self._nodes, orders)
        self._journal.write("gang_started", gang=number, ranks=[pid for crew in crews for pid in crew.pids])
        return Gang(crews, limits=self._config.limits, stdin=self._stdin)

    def _close(self, gang: Gang) -> None:
        self._preload.update(gang.imported)
        for process in gang.close():
            self._journal.write("left_behind", nodeid=self._current, **asdict(process))

    def _lead(self, gang: Gang, indices: Sequence[int], rendezvous: Rendezvous | None) -> int:
        start = gang.start()
        if rendezvous is not None:
            rendezvous.joined()
        if start.leader is not None:
            self._record(gang, failed_start(start, start.leader))
            gang.condemn()
            return 1
        self._journal.write("gang_ready")
        for done, (index, following) in enumerate(_with_following(indices), start=1):
            self._current = self._nodeid(index)
            step = gang.run(Run(index=index, following=following), self._patience(index))
            self._record(gang, step)
            if step.leader is not None:
                gang.condemn()
                return done
            if not step.is_clean and not self._program.terms[index].is_skipped:
                break
        self._record_bad(gang, gang.end())
        return done

    def _patience(self, index: int) -> Patience:
        terms = self._program.terms[index]
        skip = None if self._may_disagree(self._nodeid(index)) else SKIP_GRACES * self._config.limits.peer_grace
        return self._driver_patience(terms, skip) if terms.launches else Patience(limit=terms.limit, skip=skip)

    def _driver_patience(self, terms: Terms, skip: float | None) -> Patience:
        """What a driver gets: once for set-up, in which ranks may have to meet, and anew when they have the test."""
        limits = self._config.limits
        margin = DRIVER_MARGIN + limits.peer_grace
        set_up = max(terms.limit, limits.process_group + ROUNDED_UP)
        return Patience(limit=set_up + margin, anew=terms.limit + margin, skip=skip)

    def _may_disagree(self, nodeid: str) -> bool:
        return may_disagree(nodeid, self._config.mixed_skip)

    def _nodeid(self, index: int) -> str:
        return self._program.items[index].nodeid

    def _record_bad(self, gang: Gang, step: Step) -> None:
        """Write down what is bad of a step that the current test has only lent its name."""
        self._record(gang, Step(arrivals=[arrival for arrival in step.arrivals if arrival.outcome.is_bad]))

    def _record(self, gang: Gang, step: Step) -> None:
        """Write down one step of the current test."""
        if self._driver is None:
            record_step(gang, self._journal, self._current, step)
            outcomes = {arrival.outcome for arrival in step.arrivals}
            is_bad = step.leader is not None or (disagree(outcomes) and not self._may_disagree(self._current))
        else:
            is_bad = self._driver.settle(gang, self._current, step)
        self._bad_tests += is_bad


def _with_following(indices: Sequence[int]) -> list[tuple[int, int | None]]:
    return list(zip(indices, [*indices[1:], None], strict=True))


def assemblies(terms: Sequence[Terms], indices: Iterable[int]) -> Iterator[list[int]]:
    """The runs of neighbouring tests that one gang each may run.

    Args:
        terms: How each collected test is run.
        indices: Tests, in their order.
    """
    for _, neighbours in itertools.groupby(indices, lambda index: terms[index].gang):
        yield list(neighbours)


def first_assembly(terms: Sequence[Terms], indices: Sequence[int]) -> list[int]:
    """The first of the :func:`assemblies` of some tests, at least one."""
    return next(assemblies(terms, indices))
