"""The checks that each record of a job must pass, and the journals of runs that were killed."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from allranks.engines.agent_output import Damage
from allranks.ownership import is_dead
from allranks.protocol.config import share_of
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import (
    JOURNAL,
    MOST_RANKS,
    SCHEMA,
    TESTS_IN_ONE,
    Begun,
    Collected,
    ContainerEnded,
    Finished,
    FullCollection,
    GpuFailed,
    GpusChecked,
    JobStarted,
    NotRun,
    Passed,
    Printed,
    RankEnded,
    Record,
    Repeated,
    TestStarted,
)
from allranks.protocol.repetitions import repeated_test
from allranks.report.rank_document import write_rank_files
from allranks.report.untrusted import leads_out, other_schema, special


def complete_dead_runs(folder: Path) -> None:
    """Write the rank XML of jobs below a folder that were running when their runs were killed, as far as possible."""
    for attempt in _unended(folder):
        if is_dead(attempt.parents[3].name) and not list(attempt.glob("rank-*.xml")):
            with suppress(OSError):
                write_rank_files(attempt, attempt / JOURNAL)


def _unended(folder: Path) -> Iterator[Path]:
    """The attempts that have a journal and no record."""
    root = Path(os.path.realpath(folder))
    for journal in sorted(root.rglob(f"cells/*/*/attempt-*/{JOURNAL}")):
        # A gathered folder may hold a link here, and files would be written wherever that leads.
        if not leads_out(root, journal) and not special(journal) and not (journal.parent / "job.json").exists():
            yield journal.parent


MOST_BYTES: Final = 1 << 30
"""Limit of a job's journal: 64 ranks and 20,000 tests that pass take 40 MB, a failure up to 200 kB for each rank."""

MOST_TESTS: Final = 1_000_000

MOST_FURTHER_RANKS: Final = 1_000_000
"""Most ranks beyond the job's own that its tests may have in total: reports account for each of them."""

_RECORDS_BESIDE_TESTS: Final = 100_000
_RECORDS_OF_A_RANK: Final = 4
"""Records that a test may take for each of its ranks: its end and one in a later tear-down, doubled."""

_NEWS_OF_A_FOLLOWER: Final = (Printed, GpuFailed, GpusChecked, Passed, RankEnded)
"""A follower's records that the leading agent may lack; all its others are about the follower itself."""


class ContradictionError(Exception):
    """A report of an agent contradicts an earlier one, or the request; the message names both."""


class Ledger:
    """Checks the records of one job.

    Each agent's first record is :class:`Begun`, and none follows :class:`Finished`. Outcomes belong to tests that the
    leading agent has collected, and to ranks that these tests have; a follower's, to ranks of its node. Once an agent
    has reported that it repeats a test (:class:`Repeated`), it may report repetitions of it by their own names.
    """

    def __init__(self, world_size: int, nodes: int = 1) -> None:
        self._world_size = world_size
        self._nodes = nodes
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._collected: set[str] = set()
        self._repeated: set[str] = set()
        self._has_collected = False
        self._listed = 0
        self._early: set[str] = set()
        self._world_sizes: dict[str, int] = {}
        self._further_ranks = 0
        self._room = _RECORDS_BESIDE_TESTS

    def take(self, node: int, said: Record | Damage) -> bool:
        """Check a report of a node's agent; True if it adds something about the job.

        Raises:
            ContradictionError: No honest agent would have reported it.
        """
        if isinstance(said, Damage):
            _refuse(f"writes an unreadable record: {said.what}.")
        self._check_order(node, said)
        if node and not isinstance(said, _NEWS_OF_A_FOLLOWER):
            return False
        self._count(said)
        match said:
            case Collected() | FullCollection():
                self._add_tests(said)
            case TestStarted():
                self._check_test(said.nodeid, "reports the start of", node)
                if said.number > 1:
                    self._room += _RECORDS_OF_A_RANK * (self._world_sizes.get(said.nodeid, self._world_size) + 1)
            case Repeated():
                self._check_test(said.nodeid, "repeats", node)
                self._repeated.add(said.nodeid)
            case NotRun():
                self._check_not_run(said, node)
            case Passed():
                self._check_passed(said, node)
            case RankEnded():
                self._check_end(said, node)
        return True

    def close(self) -> None:
        """Check what could not be checked before all agents had ended.

        Raises:
            ContradictionError: A follower has reported outcomes of a test that was never collected.
        """
        if unknown := self._early - self._collected:
            _refuse(f"reports an outcome of {min(unknown)[:200]!r}, which the leading agent has not collected.")

    def _check_order(self, node: int, said: Record) -> None:
        if isinstance(said, JobStarted | ContainerEnded):
            _refuse(f"reports {type(said).__name__}, which no agent does.")
        if node in self._finished:
            _refuse(f"reports {type(said).__name__} after Finished.")
        if (node in self._begun) == isinstance(said, Begun):
            order = "a second Begun" if isinstance(said, Begun) else f"{type(said).__name__} before Begun"
            _refuse(f"reports {order}.")
        if isinstance(said, Begun):
            self._check_begun(node, said)
        if isinstance(said, Finished):
            self._finished.add(node)

    def _check_begun(self, node: int, said: Begun) -> None:
        if said.schema != SCHEMA:
            _refuse(f"writes records {other_schema(said.schema, SCHEMA)}.")
        if said.node != node:
            _refuse(f"identifies itself as that of node {said.node}.")
        self._begun.add(node)

    def _count(self, said: Record) -> None:
        if isinstance(said, Printed):
            return
        self._room -= 1
        if self._room < 0:
            _refuse(f"reports more records than {len(self._collected)} tests can have.")

    def _add_tests(self, said: Collected | FullCollection) -> None:
        if self._has_collected:
            _refuse("reports a list of tests after the last one.")
        if len(said.tests) > TESTS_IN_ONE:
            _refuse(f"names {len(said.tests)} tests in one record, over the limit of {TESTS_IN_ONE}.")
        if isinstance(said, FullCollection):
            self._check_digests(said)
            return
        self._collected.update(said.tests)
        if len(self._collected) > MOST_TESTS:
            _refuse(f"has collected more than {MOST_TESTS} tests.")
        self._has_collected = said.is_last
        self._room += _RECORDS_OF_A_RANK * (self._world_size + 1) * len(said.tests)

    def _check_digests(self, said: FullCollection) -> None:
        if len(said.digests) != len(said.tests):
            _refuse(f"names {len(said.tests)} tests and {len(said.digests)} digests in one record.")
        self._listed += len(said.tests)
        if self._listed > MOST_TESTS:
            _refuse(f"has collected more than {MOST_TESTS} tests.")

    def _check_test(self, nodeid: str, does: str, node: int) -> None:
        if nodeid in self._collected or repeated_test(nodeid) in self._repeated:
            return
        if node == 0:
            _refuse(f"{does} {nodeid[:200]!r}, which it has not collected.")
        self._early.add(nodeid)  # two connections: that of the leading agent may be behind

    def _check_not_run(self, said: NotRun, node: int) -> None:
        for nodeid in said.tests:
            self._check_test(nodeid, "has not run", node)

    def _check_passed(self, said: Passed, node: int) -> None:
        if not len(said.ranks) == len(said.arrived) == len(said.seconds) == len(set(said.ranks)):
            counts = f"{len(said.ranks)} ranks, {len(said.arrived)} times and {len(said.seconds)} durations"
            _refuse(f"reports {counts} for one end of {said.nodeid[:200]!r}.")
        self._check_test(said.nodeid, "reports an outcome of", node)
        self._check_ranks(said.nodeid, said.ranks, said.world_size, node)

    def _check_end(self, said: RankEnded, node: int) -> None:
        # A module that is skipped as a whole has no tests.
        if said.phase != "collect" or said.outcome is not Outcome.SKIPPED:
            self._check_test(said.nodeid, "reports an outcome of", node)
        self._check_ranks(said.nodeid, (said.rank,), said.world_size, node)

    def _check_ranks(self, nodeid: str, ranks: Iterable[int], world_size: int, node: int) -> None:
        known = self._world_sizes.get(nodeid)
        if known is None:
            self._add_world(nodeid, world_size)
        elif known != world_size:
            _refuse(f"gives {nodeid[:200]!r} {world_size} ranks, and gave it {known} before.")
        own = share_of(node, total=world_size, nodes=self._nodes) if node else range(world_size)
        for rank in ranks:
            if rank not in own:
                whose = f"node {node}, which has the ranks {own.start} to {own.stop - 1} of" if node else "a world of"
                _refuse(f"reports an outcome of rank {rank} in {nodeid[:200]!r}, in {whose} {world_size} ranks.")

    def _add_world(self, nodeid: str, world_size: int) -> None:
        if not 0 < world_size <= MOST_RANKS:
            _refuse(f"gives {nodeid[:200]!r} {world_size} ranks, over the limit of {MOST_RANKS}.")
        self._world_sizes[nodeid] = world_size
        further = max(0, world_size - self._world_size)
        self._further_ranks += further
        self._room += _RECORDS_OF_A_RANK * further
        if self._further_ranks > MOST_FURTHER_RANKS:
            _refuse(f"gives its tests {self._further_ranks} ranks more than its job has.")


def _refuse(what: str) -> NoReturn:
    raise ContradictionError(what)
