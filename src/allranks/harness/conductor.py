"""Leads gangs through the collected tests, one test after the other, and writes down what arrives."""

import gc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import pytest

from allranks.harness import kernel
from allranks.harness.arrival import Arrival, Step, record_observed
from allranks.harness.channel import Run
from allranks.harness.config import AgentConfig, Folders
from allranks.harness.events import EventLog
from allranks.harness.gang import Gang, HangupError
from allranks.harness.hardware import missing_hardware
from allranks.harness.outcome import Outcome
from allranks.harness.rank import Assignment, run_rank
from allranks.harness.rank_process import fork_ranks
from allranks.harness.rendezvous import Rendezvous, make_rendezvous
from allranks.harness.signals import held_back


class JobLimitError(Exception):
    """The job has used up its time."""


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Consecutive tests that share a gang.

    Attributes:
        indices: Places in the session's list of tests.
        has_process_group: Whether the gang joins the cell's process group first.
    """

    indices: tuple[int, ...]
    has_process_group: bool


class Conductor:
    """Runs every collected test on every rank.

    Args:
        session: pytest's session, collected.
        config: The job.
        folders: Its folders.
        journal: Where the agent's events go.
        stdin: Descriptor whose end-of-file means that the job is over.
    """

    def __init__(
        self, session: pytest.Session, config: AgentConfig, folders: Folders, journal: EventLog, stdin: int
    ) -> None:
        self._session = session
        self._config = config
        self._folders = folders
        self._journal = journal
        self._stdin = stdin
        self._hardware_skip = missing_hardware(config)
        self._gang_numbers = itertools.count(1)
        self._bad_tests = 0
        self._current = ""

    def run_all(self) -> None:
        """Run the tests until they end, or ``-x`` or ``--maxfail`` says so.

        Raises:
            HangupError: The job was ended from outside.
            JobLimitError: The job's time is up.
        """
        gc.freeze()
        with held_back():
            self._run_gangs()

    def _run_gangs(self) -> None:
        remaining = list(range(len(self._session.items)))
        while remaining and not self._is_over():
            done = self._run_gang(first_assembly(self._session.items, remaining, self._config.isolation))
            del remaining[:done]
        if remaining:
            nodeids = [self._session.items[index].nodeid for index in remaining]
            self._journal.write("not_run", tests=nodeids, reason=f"-x or --maxfail, {self._bad_tests} bad")

    def _is_over(self) -> bool:
        maxfail = self._session.config.getvalue("maxfail")
        return bool(maxfail) and self._bad_tests >= maxfail

    def _run_gang(self, assembly: Assembly) -> int:
        """Fork a gang for some tests and lead it as far as it goes; returns how many tests have run."""
        joins = assembly.has_process_group and self._hardware_skip is None
        rendezvous = make_rendezvous(self._config, self._folders.shared) if joins else None
        gang = self._fork(assembly, rendezvous)
        try:
            return self._lead(gang, assembly, rendezvous)
        except (HangupError, JobLimitError) as error:
            outcome = Outcome.TIMED_OUT if isinstance(error, JobLimitError) else Outcome.ABORTED
            self._record_bad(gang.abort(outcome, str(error)))
            raise
        finally:
            gang.close()
            if rendezvous is not None:
                rendezvous.joined()

    def _fork(self, assembly: Assembly, rendezvous: Rendezvous | None) -> Gang:
        self._current = self._nodeid(assembly.indices[0])
        number = next(self._gang_numbers)
        known = kernel.children()
        ranks = fork_ranks(self._config.world_size, self._rank_body(number, rendezvous))
        self._journal.write("gang_started", gang=number, ranks=[rank.pid for rank in ranks])
        return Gang(ranks, limits=self._config.limits, results=self._folders.results, stdin=self._stdin, known=known)

    def _rank_body(self, gang: int, rendezvous: Rendezvous | None) -> Callable[[int, int, int], NoReturn]:
        def be_rank(rank: int, commands: int, reports: int) -> NoReturn:
            assignment = Assignment(
                config=self._config,
                rank=rank,
                gang=gang,
                rendezvous=rendezvous,
                hardware_skip=self._hardware_skip,
                first_test=self._current,
                results=self._folders.results,
                commands=commands,
                reports=reports,
            )
            run_rank(self._session, assignment)

        return be_rank

    def _lead(self, gang: Gang, assembly: Assembly, rendezvous: Rendezvous | None) -> int:
        start = gang.start()
        if rendezvous is not None:
            rendezvous.joined()
        if start.leader is not None:
            self._record(_as_test(start, start.leader))
            gang.condemn()
            return 1
        self._journal.write("gang_ready")
        for done, (index, following) in enumerate(_with_following(assembly.indices), start=1):
            self._current = self._nodeid(index)
            step = gang.run(Run(index=index, following=following))
            self._record(step)
            if step.leader is not None:
                gang.condemn()
                return done
            if not step.is_clean:
                break
        self._record_bad(gang.end())
        return done

    def _nodeid(self, index: int) -> str:
        return self._session.items[index].nodeid

    def _record_bad(self, step: Step) -> None:
        """Write down what is bad of a step that the current test has only lent its name."""
        self._record(Step(arrivals=[arrival for arrival in step.arrivals if arrival.outcome.is_bad]))

    def _record(self, step: Step) -> None:
        """Write down one step of the current test."""
        if step.leader is not None:
            self._bad_tests += 1
        for arrival in step.arrivals:
            if arrival.observed:
                record_observed(self._folders.results, self._current, arrival)
            self._journal.write(
                "arrived",
                at=arrival.at,
                nodeid=self._current,
                rank=arrival.rank,
                outcome=arrival.outcome,
                message=arrival.message,
                consequence=arrival.consequence,
            )


def _as_test(start: Step, leader: Arrival) -> Step:
    """A start that failed, as the outcome of the test that was to come: who had joined is aborted by who could not."""
    message = f"aborted by rank {leader.rank}, which did not join the process group"
    return Step(
        arrivals=[
            arrival
            if arrival.outcome.is_bad
            else replace(
                arrival,
                outcome=Outcome.ABORTED,
                message=message,
                observed=True,
                consequence=True,
                caused_by=leader.rank,
            )
            for arrival in start.arrivals
        ]
    )


def _with_following(indices: Sequence[int]) -> list[tuple[int, int | None]]:
    return list(zip(indices, [*indices[1:], None], strict=True))


def first_assembly(items: Sequence[pytest.Item], indices: Sequence[int], isolation: str) -> Assembly:
    """The longest run of tests from the start of `indices` that one gang may run.

    Args:
        items: All collected tests.
        indices: The tests that are left, at least one.
        isolation: ``test``, ``file`` or ``job``.
    """
    keys = {index: _gang_key(items[index], index, isolation) for index in indices}
    first = keys[indices[0]]
    together = tuple(itertools.takewhile(lambda index: keys[index] == first, indices))
    return Assembly(indices=together, has_process_group=first[1])


def _gang_key(item: pytest.Item, index: int, isolation: str) -> tuple[int | str, bool]:
    has_process_group = item.get_closest_marker("no_process_group") is None
    match isolation:
        case "test":
            return index, has_process_group
        case "file":
            return str(item.path), has_process_group
    return "", has_process_group
