"""What journals cost beside the least that they could cost, as ratios of processor time.

- **write**: rank XML out of a journal, as the end of a job writes it, beside a loop that formats the same testcases
  once; and how the time grows from 8 ranks on: per rank it may not.
- **merge**: ``allranks report`` of a journal beside a bare expat pass over the rank XML that is made of it.

    python benchmarks/record_cost_journal.py [--part write|merge] [--ranks 64] [--tests N] [--runs 3]

Tests are 2,000 for writing and 20,000 for merging unless told. Times, memory and exit status are as in record_cost.py.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from merge_speed import EXPAT  # type: ignore[import-not-found]  # it is beside this file
from record_cost import MEGABYTES, OWN, Cost, Size  # type: ignore[import-not-found]  # it is beside this file
from record_cost import _medians as medians  # beside this file

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import (
    JOURNAL,
    SCHEMA,
    TESTS_IN_ONE,
    Begun,
    Collected,
    Finished,
    JobStarted,
    Passed,
    RankEnded,
    Record,
    TestStarted,
    encode,
)
from allranks.report.rank_document import write_rank_files
from allranks.report.run_files import JobRecord, as_json

WRITE_RATIO: Final = 3
GROWTH: Final = 1.5  # of the time per rank, from 8 ranks to all
MERGE_RATIO: Final = 2
FEWER_RANKS: Final = 8
SUITE: Final = "suite"
WRITE: Final = """\
import sys
from pathlib import Path
from allranks.report.rank_document import write_rank_files
write_rank_files(Path(sys.argv[1]), Path(sys.argv[2]))
"""
LOOP: Final = f"""\
import sys
from pathlib import Path
import allranks.report.rank_document
folder, ranks, tests = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for rank in range(ranks):
    with open(folder / f"rank-{{rank}}.xml", "w") as out:
        for number in range(tests):
            group, seconds, at = number % 40, (number * 7 + rank) % 1000 / 1000, 1_795_289_453 + number + rank / 64
            out.write(f{OWN!r})
"""


def records(ranks: int, tests: int) -> Iterator[Record]:
    """The journal of a job whose tests nearly all pass: one in a hundred fails on one rank."""
    cell, every = f"gloo-w{ranks}-g0-env", tuple(range(ranks))
    yield JobStarted(schema=SCHEMA, run_id="cost", cell=cell, suite=SUITE, attempt=1, world_size=ranks)
    yield Begun(schema=SCHEMA)
    names = [
        f"suites/collectives/test_{number % 40}.py::TestAll::test_case[{number}-float32]" for number in range(tests)
    ]
    for start in range(0, tests, TESTS_IN_ONE):
        part = tuple(names[start : start + TESTS_IN_ONE])
        yield Collected(tests=part, is_last=start + TESTS_IN_ONE >= tests)
    for number, nodeid in enumerate(names):
        at = 1_795_289_453.0 + number
        yield TestStarted(at=at, nodeid=nodeid)
        passed = every[:-1] if number % 100 == 7 else every
        yield Passed(
            at=at,
            nodeid=nodeid,
            ranks=passed,
            arrived=tuple(at + rank / 64 for rank in passed),
            seconds=tuple((number * 7 + rank) % 1000 / 1000 for rank in passed),
            world_size=ranks,
        )
        if len(passed) < ranks:
            yield RankEnded(
                at=at,
                nodeid=nodeid,
                rank=ranks - 1,
                outcome=Outcome.FAILED,
                world_size=ranks,
                arrived=at + 1,
                phase="call",
                message="AssertionError: 1.0 != 2.0",
                text="E   tensors differ on this rank: 1.0 != 2.0\n" * 32,
                stdout="said " * 60,
            )
    yield Finished(status=0)


def write_journal(folder: Path, ranks: int, tests: int) -> Path:
    """A run's folder with one job; the folder of its attempt."""
    attempt = folder / "cells" / f"gloo-w{ranks}-g0-env" / SUITE / "attempt-1"
    attempt.mkdir(parents=True)
    with (attempt / JOURNAL).open("wb") as file:
        file.writelines(encode(record) + b"\n" for record in records(ranks, tests))
    record = JobRecord(run_id="cost", world_size=ranks, collected=None, started=1.0, finished=2.0)
    (attempt / "job.json").write_text(json.dumps(as_json(record)), encoding="utf-8")
    return attempt


def write_cost(size: Size) -> Iterator[str]:
    """Print what writing rank XML costs; what was missed."""
    few, all_of_them = (_write_costs(ranks, size) for ranks in (FEWER_RANKS, size.ranks))
    ratio = all_of_them[0].seconds / all_of_them[1].seconds
    growth = all_of_them[0].seconds / size.ranks / (few[0].seconds / FEWER_RANKS)
    print(
        f"write: {all_of_them[0].seconds:.2f} s for {size.ranks} ranks x {size.tests} tests, {ratio:.2f} times a loop "
        f"({all_of_them[1].seconds:.2f} s), {growth:.2f} times as long per rank as for {FEWER_RANKS}; "
        f"{all_of_them[0].megabytes:.0f} MB",
        flush=True,
    )
    if ratio > WRITE_RATIO:
        yield f"write: at most {WRITE_RATIO} times a loop"
    if growth > GROWTH:
        yield f"write: at most {GROWTH} times as long per rank as for {FEWER_RANKS} ranks"


def _write_costs(ranks: int, size: Size) -> list[Cost]:
    with tempfile.TemporaryDirectory(prefix="record-cost-") as scratch:
        attempt = write_journal(Path(scratch), ranks, size.tests)
        write = [sys.executable, "-c", WRITE, str(attempt), str(attempt / JOURNAL)]
        loop = [sys.executable, "-c", LOOP, str(attempt), str(ranks), str(size.tests)]
        costs: list[Cost] = medians([write, loop], size.runs)
        return costs


def merge_cost(size: Size) -> Iterator[str]:
    """Print what merging costs; what was missed."""
    with tempfile.TemporaryDirectory(prefix="record-cost-") as scratch:
        attempt = write_journal(Path(scratch), size.ranks, size.tests)
        write_rank_files(attempt, attempt / JOURNAL)
        bare = [sys.executable, "-c", EXPAT, *map(str, sorted(attempt.glob("rank-*.xml")))]
        merge = [sys.executable, "-m", "allranks", "report", scratch]
        costs = medians([bare, merge], size.runs)
    ratio = costs[1].seconds / costs[0].seconds
    print(
        f"merge: {costs[1].seconds:.2f} s for {size.ranks} ranks x {size.tests} tests, {ratio:.2f} times a bare pass "
        f"({costs[0].seconds:.2f} s); {costs[1].megabytes:.0f} MB",
        flush=True,
    )
    if ratio > MERGE_RATIO:
        yield f"merge: at most {MERGE_RATIO} times a bare pass"
    if costs[1].megabytes > MEGABYTES:
        yield f"merge: {MEGABYTES} MB"


PARTS: Final[dict[str, tuple[Callable[[Size], Iterator[str]], int]]] = {
    "write": (write_cost, 2_000),
    "merge": (merge_cost, 20_000),
}


def main() -> None:
    """Measure, print, and fail where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--tests", type=int)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    missed = []
    for part in options.part or PARTS:
        measure, tests = PARTS[part]
        missed += list(measure(Size(options.ranks, options.tests or tests, options.runs)))
    print("\n".join(f"MISSED {failure}" for failure in missed) or "all targets met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
