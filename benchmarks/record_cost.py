"""What the way of an outcome costs beside the least that it could cost, as ratios of processor time.

- **merge**: ``allranks report`` beside a bare expat pass that counts testcases, over the same rank XML: as plain pytest
  writes it, and as allranks does.

    python benchmarks/record_cost.py [--part merge] [--ranks 64] [--tests 20000] [--runs 3]

Time is that of processors, with all child processes, so that neighbours and numbers of cores count little; the sides
take turns, and the median counts. Memory is the largest of a process. Exit status 1 where a target is missed: at most
1.1 times a bare pass on XML of allranks, 3 times on XML of pytest, and 60 MB. Of the 57 MB that 64 ranks of 20,000
tests take as XML of allranks, 24 are Python, allranks and its commands, 10 the times and arrivals of each test on each
rank, and most of the rest names and verdicts. As XML of pytest they take as much: it has no arrivals, but 64 results of
each of 600 tests with an outcome other than a pass.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from merge_speed import EXPAT, Corpus, make  # type: ignore[import-not-found]  # it is beside this file

MERGE_RATIOS: Final = MappingProxyType({"pytest": 3.0, "allranks": 1.1})
MEGABYTES: Final = 60
OWN: Final = (
    '<testcase classname="suites.test_{group}.TestAll" name="test_case[{number}-float32]" time="{seconds:.3f}">'
    '<properties><property name="allranks.nodeid" value="suites/t_{group}.py::TestAll::test_case[{number}-float32]" />'
    '<property name="allranks.outcome" value="passed" /><property name="allranks.world_size" value="{ranks}" />'
    '<property name="allranks.at" value="{at:.6f}" /></properties></testcase>'
)


class Size(NamedTuple):
    """How much there is to do."""

    ranks: int
    tests: int
    runs: int


class Cost(NamedTuple):
    """What a command took: seconds of processors, and the megabytes of its largest process."""

    seconds: float
    megabytes: float


def merge_cost(size: Size) -> Iterator[str]:
    """Print what merging costs; what was missed."""
    for writer, write in (("pytest", _write_as_pytest), ("allranks", _write_as_allranks)):
        with tempfile.TemporaryDirectory(prefix="record-cost-") as scratch:
            paths = write(size, Path(scratch))
            bare = [sys.executable, "-c", EXPAT, *map(str, paths)]
            merge = [sys.executable, "-m", "allranks", "report", scratch]
            costs = _medians([bare, merge], size.runs)
        ratio = costs[1].seconds / costs[0].seconds
        took = f"{costs[1].seconds:.2f} s, {ratio:.2f} times a bare pass ({costs[0].seconds:.2f} s)"
        print(f"merge, XML of {writer}: {took}; {costs[1].megabytes:.0f} MB", flush=True)
        if ratio > MERGE_RATIOS[writer]:
            yield f"merge, XML of {writer}: at most {MERGE_RATIOS[writer]} times a bare pass"
        if costs[1].megabytes > MEGABYTES:
            yield f"merge, XML of {writer}: {MEGABYTES} MB"


def _write_as_pytest(size: Size, folder: Path) -> list[Path]:
    return list(make(Corpus(name="cost", jobs=1, ranks=size.ranks, tests=size.tests), folder))


def _write_as_allranks(size: Size, folder: Path) -> list[Path]:
    job = folder / f"gloo-w{size.ranks}-g0-env" / "suite"
    job.mkdir(parents=True)
    paths = [job / f"rank-{rank}.xml" for rank in range(size.ranks)]
    for rank, path in enumerate(paths):
        cases = "".join(
            OWN.format(
                group=number % 40,
                number=number,
                ranks=size.ranks,
                seconds=(number * 7 + rank) % 1000 / 1000,
                at=1_795_289_453 + number + rank / 64,
            )
            for number in range(size.tests)
        )
        output = f'<properties><property name="allranks.rank" value="{rank}" /></properties>'
        path.write_text(
            f'<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite tests="{size.tests}">'
            f"{output}{cases}</testsuite></testsuites>",
            encoding="utf-8",
        )
    return paths


def _medians(commands: Sequence[Sequence[str]], runs: int) -> list[Cost]:
    costs = [[_run(command) for command in commands] for _ in range(runs)]
    return [
        Cost(statistics.median(cost.seconds for cost in side), max(cost.megabytes for cost in side))
        for side in zip(*costs, strict=True)
    ]


def _run(command: Sequence[str]) -> Cost:
    """Run a command in a child of a child, whose resources are its own."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(writing, f"{status} {used.ru_utime + used.ru_stime} {used.ru_maxrss}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        output, seconds, kilobytes = answer.read().split()
    os.wait()
    if output not in {"0", "1"}:
        sys.exit(f"{' '.join(command[:5])} … ended with {output}")
    return Cost(float(seconds), int(kilobytes) / 1024)


PARTS: Final[dict[str, Callable[[Size], Iterator[str]]]] = {"merge": merge_cost}


def main() -> None:
    """Measure, print, and fail where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--tests", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    size = Size(options.ranks, options.tests, options.runs)
    missed = [failure for part in options.part or PARTS for failure in PARTS[part](size)]
    print("\n".join(f"MISSED {failure}" for failure in missed) or "all targets met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
