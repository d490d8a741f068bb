"""The size and the cost of a history: 500 runs of 20,000 tests, 1 % of whose outcomes change in each run.

Which outcomes change:

- ``uniform``: any of them, at random.
- ``flaky``: 2 % of the tests pass or fail at random in each cell.
- ``broken``: tests break in a quarter of the cells (or in the only one), and are fixed after some ten runs.

    python benchmarks/history.py [--model uniform|flaky|broken] [--cells 1] [--runs 500] [--more 20]

Each run is handed to ``HistoryRecorder`` as a merge does it. After ``--runs`` runs, ``--more`` runs are recorded and
timed: in these the oldest run is deleted each time. The processor time of one contains taking the verdicts of all
tests, and writing the file.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from allranks.plugins.history.recorder import HistoryRecorder
from allranks.protocol.outcomes import Outcome
from allranks.report.judged import CellSuite
from allranks.report.results import (
    Durations,
    Key,
    PassedRanks,
    RankFile,
    RankGroup,
    RankResult,
    TestVerdict,
    Verdict,
    VerdictKind,
    VerdictRule,
)

TESTS: Final = 20_000
NODEIDS: Final = [f"tests/test_{number // 100}.py::TestAll::test_case[{number}]" for number in range(TESTS)]

Model = Callable[[random.Random, int], Iterator[list[int]]]
"""Yields for each run the places that change, of a number of cells; a place is test * cells + cell."""


def uniform(dice: random.Random, cells: int) -> Iterator[list[int]]:
    """Any outcomes change."""
    while True:
        yield dice.sample(range(TESTS * cells), TESTS * cells // 100)


def flaky(dice: random.Random, cells: int) -> Iterator[list[int]]:
    """One outcome of two changes, in 2 % of the tests."""
    some = dice.sample(range(TESTS), TESTS // 50)
    while True:
        yield [test * cells + cell for test in some for cell in range(cells) if dice.random() < 0.5]


def broken(dice: random.Random, cells: int) -> Iterator[list[int]]:
    """A test breaks in a quarter of the cells, and is fixed after some ten runs."""
    quarter = max(1, cells // 4)
    bad: list[tuple[int, int]] = []
    each_run = TESTS * cells // 100 // quarter
    while True:
        fixed = set(dice.sample(range(len(bad)), min(len(bad) // 10, each_run // 2)))
        new = {(dice.randrange(TESTS), dice.randrange(cells // quarter)) for _ in range(each_run - len(fixed))}
        added = sorted(new - set(bad))
        changed = [bad[place] for place in fixed] + added
        bad = [item for place, item in enumerate(bad) if place not in fixed] + added
        yield [test * cells + quarter * part + cell for test, part in changed for cell in range(quarter)]


MODELS: Final[dict[str, Model]] = {"uniform": uniform, "flaky": flaky, "broken": broken}


class Cells:
    """The tests of a run in each cell: most passed on both ranks, the others failed on both."""

    def __init__(self, cells: int) -> None:
        keys = tuple(Key("TestAll", nodeid, nodeid) for nodeid in NODEIDS)
        files = [RankFile(path=Path(), rank=rank, keys=keys, seconds=Durations.of([1.0] * TESTS)) for rank in range(2)]
        team = RankGroup(tuple(files))
        passed = Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED)
        failed = Verdict(kind=VerdictKind.FAILURE, rule=VerdictRule.PRIMARY_FAILURE, leading=0)
        ranks = tuple(RankResult(nodeid="", classname="", name="", rank=r, outcome=Outcome.FAILED) for r in range(2))
        good = [
            TestVerdict(nodeid=nodeid, classname="", name="", verdict=passed, ranks=PassedRanks(team, place))
            for place, nodeid in enumerate(NODEIDS)
        ]
        bad = [TestVerdict(nodeid=nodeid, classname="", name="", verdict=failed, ranks=ranks) for nodeid in NODEIDS]
        self._forms = good, bad
        self._tests = [list(good) for _ in range(cells)]

    def change(self, place: int) -> None:
        """Let a test that passed fail, and one that failed pass."""
        test, cell = divmod(place, len(self._tests))
        good, bad = self._forms
        tests = self._tests[cell]
        tests[test] = bad[test] if tests[test] is good[test] else good[test]

    def jobs(self, started: float) -> Iterator[CellSuite]:
        """The jobs of a run."""
        for cell, tests in enumerate(self._tests):
            yield CellSuite(cell=f"gloo-w{2 + cell}-g0-env", suite="suite", tests=tuple(tests), started=started)


def record(path: Path, cells: Cells, run: int) -> float:
    """Record a run; processor seconds."""
    recorder, took = HistoryRecorder(path), 0.0
    for job in cells.jobs(1e9 + 8640 * run):
        began = time.process_time()
        recorder(job)
        took += time.process_time() - began
    began = time.process_time()
    result = recorder.record(f"20260101T000000Z-{run:06x}")
    if result.problem:
        sys.exit(result.problem)
    return took + time.process_time() - began


def measure(model: str, options: argparse.Namespace) -> None:
    """Measure one model, and print it."""
    changes = MODELS[model](random.Random(model), options.cells)  # noqa: S311 - no secrets
    cells, costs, size = Cells(options.cells), [], 0
    with tempfile.TemporaryDirectory(prefix="history-") as scratch:
        path = Path(scratch) / "history.sqlite"
        for run in range(options.runs + options.more):
            for place in next(changes) if run else ():
                cells.change(place)
            costs.append(record(path, cells, run))
            size = path.stat().st_size
    first, more = costs[0], costs[-(options.more or 1) :]
    print(
        f"{model}: {size / 1e6:.1f} MB, {size / options.runs / 1e3:.1f} kB a run; first run {first:.2f} s,"
        f" all {sum(costs):.0f} s, then a run {statistics.median(more):.2f} s, at most {max(more):.2f} s",
        flush=True,
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append", help="repeatable; default: all")
    parser.add_argument("--cells", type=int, default=1)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--more", type=int, default=20, help="runs that are recorded after these, and timed")
    options = parser.parse_args()
    for model in options.model or MODELS:
        measure(model, options)


if __name__ == "__main__":
    main()
