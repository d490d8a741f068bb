"""The size and the cost of ``allranks merge --history``: 20,000 tests in 100 cells, 10 runs a day for a year.

1 % of the 2,000,000 outcomes change in each run, in one of three ways:

- ``uniform``: any of them, at random. No file can hold that in 50 MB: to choose 20,000 of 2,000,000 takes 20.2 kB by
  information theory, 74 MB a year. The history then drops its oldest runs, and the benchmark prints how many it has.
- ``flaky``: 2 % of the tests pass and fail at random in all cells.
- ``broken``: tests break in the cells of one backend, stay so for some ten runs, and are fixed.

    python benchmarks/history.py [--model uniform|flaky|broken] [--days 365] [--part 20] [--merges 5]

The runs are fed to the history as arrays. A history keeps each 1,024 tests apart, so ``--part 20`` simulates a 20th of
the tests, and multiplies the bytes. Whole merges are timed in a history of all tests and 100 runs: the processor time
that ``HistoryRecorder`` needs for the 2,000,000 verdicts of a run, and to record it. Exit status 1 where the file has
more than 50 MB (but for ``uniform``), or the median of these merges adds more than 2 s of processor time.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from math import lgamma, log
from pathlib import Path
from typing import Final

from allranks.plugins.history.database import read, written
from allranks.plugins.history.recorder import HistoryRecorder
from allranks.plugins.history.timeline import LARGEST_FILE, Timeline
from allranks.protocol.outcomes import Outcome
from allranks.report.judged import CellSuite
from allranks.report.results import (
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
CELLS: Final = 100
A_DAY: Final = 10
CHANGES: Final = TESTS * CELLS // 100
MOST_BYTES: Final = 50_000_000
MOST_SECONDS: Final = 2.0
SUITE: Final = "suite"
NODEIDS: Final = [f"tests/test_{number // 100}.py::TestAll::test_case[{number}]" for number in range(TESTS)]
CELL_NAMES: Final = [
    f"{backend}-w{2 * size}-g0-env" for backend in ("gloo", "nccl", "mpi", "ucc") for size in range(25)
]

RECENT: Final = 100
"""Runs before a merge that is timed: enough for blocks."""

Model = Callable[[random.Random, int], Iterator[list[int]]]
"""Yields for each run the places that change, of a number of tests."""


def uniform(dice: random.Random, tests: int) -> Iterator[list[int]]:
    """Any outcomes change."""
    while True:
        yield dice.sample(range(tests * CELLS), tests * CELLS // 100)


def flaky(dice: random.Random, tests: int) -> Iterator[list[int]]:
    """One outcome of two changes, in 2 % of the tests."""
    some = dice.sample(range(tests), tests // 50)
    while True:
        yield [test * CELLS + cell for test in some for cell in range(CELLS) if dice.random() < 0.5]


def broken(dice: random.Random, tests: int) -> Iterator[list[int]]:
    """A test breaks in a quarter of the cells, and is mended after some ten runs."""
    bad: list[tuple[int, int]] = []
    each_run = tests * CELLS // 100 // 25
    while True:
        mended = set(dice.sample(range(len(bad)), min(len(bad) // 10, each_run // 2)))
        new = [(dice.randrange(tests), dice.randrange(4)) for _ in range(each_run - len(mended))]
        new = list(set(new) - set(bad))
        changed = [bad[place] for place in mended] + new
        bad = [each for place, each in enumerate(bad) if place not in mended] + new
        yield [test * CELLS + 25 * quarter + cell for test, quarter in changed for cell in range(25)]


MODELS: Final[dict[str, Model]] = {"uniform": uniform, "flaky": flaky, "broken": broken}


def simulate(path: Path, model: str, runs: int, tests: int) -> list["array[int]"]:
    """Feed runs to a new file; the codes of each cell after the last."""
    changes = MODELS[model](random.Random(model), tests)  # noqa: S311 - no secrets
    cells = [array("H", [1]) * tests for _ in range(CELLS)]
    numbers = array("I", range(tests))
    for day in range(-(-runs // A_DAY)):
        with written(path) as database:
            line = Timeline(database)
            places = [(line.names.cell(name), line.names.suite(SUITE)) for name in CELL_NAMES]
            for nodeid in NODEIDS[:tests]:
                line.names.test(0, nodeid)
            line.fit()
            for run in range(day * A_DAY, min(runs, (day + 1) * A_DAY)):
                for place in next(changes):
                    test, cell = divmod(place, CELLS)
                    cells[cell][test] = 3 - cells[cell][test]
                outcomes = {place: [(numbers, codes)] for place, codes in zip(places, cells, strict=True)}
                line.append(f"20260101T000000Z-{run:06x}", run * 86400 / A_DAY, outcomes)
                line.save()
    return cells


def jobs_of(cells: list["array[int]"]) -> Iterator[CellSuite]:
    """A run as a merge hands it on: most tests passed on both ranks, the others failed on one."""
    passed = Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED)
    failed = Verdict(kind=VerdictKind.FAILURE, rule=VerdictRule.LEADING_OUTCOME, leading=0)
    keys = tuple(Key("TestAll", nodeid, nodeid) for nodeid in NODEIDS)
    files = [RankFile(path=Path(), rank=rank, keys=keys, seconds=array("d", [1.0]) * TESTS) for rank in range(2)]
    team = RankGroup(tuple(files))
    own = (
        RankResult(nodeid="", classname="", name="", rank=0, outcome=Outcome.FAILED),
        RankResult(nodeid="", classname="", name="", rank=1, outcome=Outcome.FAILED),
    )
    for name, codes in zip(CELL_NAMES, cells, strict=True):
        tests = [
            TestVerdict(
                nodeid=nodeid,
                classname="",
                name="",
                verdict=passed if code == 1 else failed,
                ranks=PassedRanks(team, place) if code == 1 else own,
                slowest=1.0 if code == 1 else None,
            )
            for place, (nodeid, code) in enumerate(zip(NODEIDS, codes, strict=True))
        ]
        yield CellSuite(cell=name, suite=SUITE, tests=tuple(tests), started=1e9)


def merge_seconds(path: Path, cells: list["array[int]"], run: int) -> tuple[float, float]:
    """Processor seconds to take the verdicts of a run, and to record it."""
    recorder, took = HistoryRecorder(path), 0.0
    for job in jobs_of(cells):
        began = time.process_time()
        recorder(job)
        took += time.process_time() - began
    began = time.process_time()
    told = recorder.record(f"measured-{run}")
    if told.problem:
        sys.exit(told.problem)
    return took, time.process_time() - began


def entropy() -> float:
    """Bytes that choosing the outcomes that change takes at least."""
    places = TESTS * CELLS
    return (lgamma(places + 1) - lgamma(CHANGES + 1) - lgamma(places - CHANGES + 1)) / log(2) / 8


def size(model: str, runs: int, part: int, path: Path) -> list[str]:
    """Measure the file after some runs of a part of the tests; what was missed."""
    simulate(path, model, runs, TESTS // part)
    began = time.process_time()
    with read(path) as database:
        line = Timeline(database)
        line.changes_at(range(CELLS), 1)
        kept = line.runs[-1].number - line.begins + 1
    took = time.process_time() - began
    bytes_ = path.stat().st_size * part
    print(f"  {bytes_ / 1e6:.1f} MB for {kept} runs, {bytes_ / kept / 1e3:.1f} kB a run", flush=True)
    print(f"  one test in all cells and runs: {took:.2f} s", flush=True)
    if bytes_ <= MOST_BYTES:
        return []
    left = int(LARGEST_FILE / (bytes_ / kept))
    print(f"  a file of all tests has the outcomes of the last {left} runs: {left // A_DAY} days")
    return [] if model == "uniform" else [f"{model}: {MOST_BYTES / 1e6:g} MB"]


def seconds(model: str, merges: int, path: Path) -> list[str]:
    """Time whole merges; what was missed."""
    cells = simulate(path, model, RECENT, TESTS)
    changes = MODELS[model](random.Random(1), TESTS)  # noqa: S311
    costs = []
    for number in range(merges):
        for place in next(changes):
            cells[place % CELLS][place // CELLS] = 3 - cells[place % CELLS][place // CELLS]
        costs.append(merge_seconds(path, cells, number))
    took = statistics.median(map(sum, costs))
    print(f"  a merge adds {took:.2f} s: {statistics.median(cost[0] for cost in costs):.2f} s to take the verdicts")
    return [f"{model}: {MOST_SECONDS:g} s"] if took > MOST_SECONDS else []


def measure(model: str, options: argparse.Namespace) -> list[str]:
    """Measure and print one model; what was missed."""
    runs = options.days * A_DAY
    print(f"{model}: {runs} runs of 1/{options.part} of the tests", flush=True)
    with tempfile.TemporaryDirectory(prefix="history-") as scratch:
        missed = size(model, runs, options.part, Path(scratch) / "part.sqlite")
        return [*missed, *(seconds(model, options.merges, Path(scratch) / "all.sqlite") if options.merges else [])]


def main() -> None:
    """Measure, print, and fail where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append", help="repeatable; default: all")
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--part", type=int, default=20, help="simulate a part of the tests: 1 for all of them")
    parser.add_argument("--merges", type=int, default=5, help="whole merges that are timed")
    options = parser.parse_args()
    least = entropy()
    print(f"uniform changes take at least {least / 1e3:.1f} kB a run, {least * A_DAY * 365 / 1e6:.1f} MB a year")
    missed = [each for model in options.model or MODELS for each in measure(model, options)]
    print("\n".join(f"MISSED {each}" for each in missed) or "all targets met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
