"""Checks each record of a job, and completes the results of runs that were killed."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from allranks.engines.agent_output import Damage
from allranks.errors import counted
from allranks.ownership import is_dead
from allranks.protocol.config import share_of
from allranks.protocol.outcomes import Outcome, named_ranks
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
    """Write the rank XML of jobs that were running when their runs were killed, as far as possible."""
    for attempt in _unrecorded_attempts(folder):
        if is_dead(attempt.parents[3].name) and not list(attempt.glob("rank-*.xml")):
            with suppress(OSError):
                write_rank_files(attempt, attempt / JOURNAL)


def _unrecorded_attempts(folder: Path) -> Iterator[Path]:
    """The attempts that have a journal, but no record of their end."""
    root = Path(os.path.realpath(folder))
    for journal in sorted(root.rglob(f"cells/*/*/attempt-*/{JOURNAL}")):
        # Results from another machine may contain symlinks: do not write outside of the folder.
        if not leads_out(root, journal) and not special(journal) and not (journal.parent / "job.json").exists():
            yield journal.parent


MOST_BYTES: Final = 1 << 30
"""Limit of a job's journal: 64 ranks and 20,000 passing tests take 40 MB, a failure up to 200 kB for each rank."""

MOST_TESTS: Final = 1_000_000

MOST_EXTRA_RANKS: Final = 1_000_000
"""Limit of the sum, over a job's tests, of the ranks beyond the job's own: the report lists each rank."""

_RECORDS_WITHOUT_TESTS: Final = 100_000
_RECORDS_PER_RANK: Final = 4
"""Records that a test may have for each rank: twice as many as needed, which are its end and a later teardown's end."""

_RELEVANT_FROM_FOLLOWERS: Final = (Printed, GpuFailed, GpusChecked, Passed, RankEnded)
"""The records of followers that are kept, since they add to those of the lead node's agent."""


class ContradictionError(Exception):
    """A record contradicts an earlier one or the request; the message is a predicate whose subject is the agent."""


class Ledger:
    """Checks the records of one job.

    Each agent's first record is :class:`Begun`, and none follows :class:`Finished`. An outcome must belong to a test
    that the lead node's agent has collected, and to one of the test's ranks on the agent's node. Once an agent has
    reported that it repeats a test (:class:`Repeated`), it may report repetitions by their own node ids.
    """

    def __init__(self, world_size: int, nodes: int = 1) -> None:
        self._world_size = world_size
        self._nodes = nodes
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._collected: set[str] = set()
        self._repeated: set[str] = set()
        self._has_collected = False
        self._digests = 0
        self._uncollected: set[str] = set()  # tests that followers reported before the lead node's agent collected them
        self._world_sizes: dict[str, int] = {}
        self._extra_ranks = 0
        self._record_budget = _RECORDS_WITHOUT_TESTS

    def take(self, node: int, record: Record | Damage) -> bool:
        """Check a record of a node's agent; return whether it adds something about the job.

        Raises:
            ContradictionError: No correct agent would have sent it.
        """
        if isinstance(record, Damage):
            _reject(f"writes an unreadable record: {record.what}.")
        self._check_order(node, record)
        if node and not isinstance(record, _RELEVANT_FROM_FOLLOWERS):
            return False
        self._count(record)
        match record:
            case Collected() | FullCollection():
                self._add_tests(record)
            case TestStarted():
                self._check_start(record, node)
            case Repeated():
                self._check_test(record.nodeid, "reports repetitions of", node)
                self._repeated.add(record.nodeid)
            case NotRun():
                for nodeid in record.tests:
                    self._check_test(nodeid, "reports that it did not run", node)
            case Passed():
                self._check_passed(record, node)
            case RankEnded():
                self._check_end(record, node)
        return True

    def close(self) -> None:
        """Check what could not be checked before all agents had ended.

        Raises:
            ContradictionError: A follower reported outcomes of a test that was never collected.
        """
        if unknown := self._uncollected - self._collected:
            _reject(f"reports on {min(unknown)[:200]!r}, which the lead node's agent has not collected.")

    def _check_order(self, node: int, record: Record) -> None:
        name = type(record).__name__
        if isinstance(record, JobStarted | ContainerEnded):
            _reject(f"reports {name}, which no agent does.")
        if node in self._finished:
            _reject(f"reports {name} after Finished.")
        if (node in self._begun) == isinstance(record, Begun):
            _reject("reports a second Begun." if isinstance(record, Begun) else f"reports {name} before Begun.")
        if isinstance(record, Begun):
            self._check_begun(node, record)
        if isinstance(record, Finished):
            self._finished.add(node)

    def _check_begun(self, node: int, record: Begun) -> None:
        if record.schema != SCHEMA:
            _reject(f"writes records {other_schema(record.schema, SCHEMA)}.")
        if record.node != node:
            _reject(f"identifies itself as that of node {record.node}.")
        self._begun.add(node)

    def _count(self, record: Record) -> None:
        if isinstance(record, Printed):
            return
        self._record_budget -= 1
        if self._record_budget < 0:
            _reject(f"reports more records than {counted(len(self._collected), 'test')} can have.")

    def _add_tests(self, record: Collected | FullCollection) -> None:
        if self._has_collected:
            _reject("reports a list of tests after the last one.")
        if len(record.tests) > TESTS_IN_ONE:
            _reject(f"names {len(record.tests)} tests in one record, over the limit of {TESTS_IN_ONE}.")
        if isinstance(record, FullCollection):
            self._check_digests(record)
            return
        self._collected.update(record.tests)
        if len(self._collected) > MOST_TESTS:
            _reject(f"has collected more than {MOST_TESTS} tests.")
        self._has_collected = record.is_last
        self._record_budget += _RECORDS_PER_RANK * (self._world_size + 1) * len(record.tests)

    def _check_digests(self, record: FullCollection) -> None:
        if len(record.digests) != len(record.tests):
            _reject(
                f"has {counted(len(record.digests), 'digest')} for {counted(len(record.tests), 'test')} in one record."
            )
        self._digests += len(record.tests)
        if self._digests > MOST_TESTS:
            _reject(f"has collected more than {MOST_TESTS} tests.")

    def _check_test(self, nodeid: str, action: str, node: int) -> None:
        if nodeid in self._collected or repeated_test(nodeid) in self._repeated:
            return
        if node == 0:
            _reject(f"{action} {nodeid[:200]!r}, which it has not collected.")
        self._uncollected.add(nodeid)  # checked at the end: the lead node's agent has another, maybe slower connection

    def _check_start(self, record: TestStarted, node: int) -> None:
        self._check_test(record.nodeid, "reports the start of", node)
        if record.number > 1:
            ranks = self._world_sizes.get(record.nodeid, self._world_size)
            self._record_budget += _RECORDS_PER_RANK * (ranks + 1)

    def _check_passed(self, record: Passed, node: int) -> None:
        if not len(record.ranks) == len(record.arrived) == len(record.seconds) == len(set(record.ranks)):
            counts = f"ranks ({len(record.ranks)}), times ({len(record.arrived)}) and durations ({len(record.seconds)})"
            _reject(f"reports mismatched {counts} for one end of {record.nodeid[:200]!r}.")
        self._check_test(record.nodeid, "reports an outcome of", node)
        self._check_ranks(record.nodeid, record.ranks, record.world_size, node)

    def _check_end(self, record: RankEnded, node: int) -> None:
        # A module that is skipped as a whole has no collected tests.
        if record.phase != "collect" or record.outcome is not Outcome.SKIPPED:
            self._check_test(record.nodeid, "reports an outcome of", node)
        self._check_ranks(record.nodeid, (record.rank,), record.world_size, node)

    def _check_ranks(self, nodeid: str, ranks: Iterable[int], world_size: int, node: int) -> None:
        known = self._world_sizes.get(nodeid)
        if known is None:
            self._add_world_size(nodeid, world_size)
        elif known != world_size:
            _reject(f"reports a world size of {world_size} for {nodeid[:200]!r}, but {known} before.")
        own = share_of(node, total=world_size, nodes=self._nodes) if node else range(world_size)
        for rank in ranks:
            if rank not in own:
                has = f"node {node} only has {named_ranks(own)}" if node else f"the world size is {world_size}"
                _reject(f"reports an outcome of rank {rank} in {nodeid[:200]!r}, but {has}.")

    def _add_world_size(self, nodeid: str, world_size: int) -> None:
        if not 0 < world_size <= MOST_RANKS:
            _reject(f"reports a world size of {world_size} for {nodeid[:200]!r}; 1 to {MOST_RANKS} are valid.")
        self._world_sizes[nodeid] = world_size
        extra = max(0, world_size - self._world_size)
        self._extra_ranks += extra
        self._record_budget += _RECORDS_PER_RANK * extra
        if self._extra_ranks > MOST_EXTRA_RANKS:
            _reject(f"reports tests with {self._extra_ranks} more ranks than the job; the limit is {MOST_EXTRA_RANKS}.")


def _reject(what: str) -> NoReturn:
    raise ContradictionError(what)
