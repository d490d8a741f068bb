"""Merging what ranks left: ``allranks report`` beside ``junitparser merge``, in seconds and in memory.

Three folders of JUnit XML are made as pytest writes it (one test in 100 fails on every rank with 2 kB of traceback and
some output, one in 50 is skipped):

- ``small``: 100 files of 100 testcases, 25 jobs of 4 ranks
- ``wide``: 1,000 files of 200 testcases, 125 jobs of 8 ranks
- ``long``: 64 files of 20,000 testcases, one job of 64 ranks

For each, in one go and each in a process of its own:

- **junitparser**: ``junitparser merge``, the alternative. It counts again with every suite that it takes in.
- **linear**: the same library and the same file, counted once.
- **expat**: one bare pass over all files that counts testcases; nothing that reads XML in Python can be quicker.
- **allranks**: ``allranks report``, which also judges, accounts for every rank, and writes its other reports.

    python benchmarks/merge_speed.py [--corpus small|wide|long] [--runs 3] [--skip junitparser]

allranks and expat are run ``--runs`` times, and the median counts; the others once, as they take minutes. Memory is the
largest of a process of that command. Exit status 1 where allranks is less than 300 times as fast as junitparser on
``wide``, less than 40 times on ``long``, takes more than 2.5 times as long as expat on ``long``, or needs 70 MB.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SIDES: Final = ("junitparser", "linear", "expat", "allranks")
REPEATED: Final = ("expat", "allranks")
MEGABYTES: Final = 70
MEASURE: Final = """\
import resource, subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
took = time.monotonic() - began
print(took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, done.returncode)
"""
LINEAR: Final = """\
import sys
from junitparser import JUnitXml
merged, counts = JUnitXml(), [0, 0, 0, 0]
for path in sys.argv[2:]:
    for suite in JUnitXml.fromfile(path):
        merged._elem.append(suite._elem)
        for place, count in enumerate((suite.tests, suite.failures, suite.errors, suite.skipped)):
            counts[place] += count
merged.tests, merged.failures, merged.errors, merged.skipped = counts
merged.write(sys.argv[1])
"""
EXPAT: Final = """\
import sys
from xml.parsers import expat
count = 0
def start(tag, attributes):
    global count
    count += tag == "testcase"
for path in sys.argv[1:]:
    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    with open(path, "rb") as file:
        parser.ParseFile(file)
print(count)
"""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What is merged, and what is wanted of it.

    Attributes:
        wanted: How many times as fast as junitparser allranks is to be.
        bare: How many times as long as a bare pass it may take.
    """

    name: str
    jobs: int
    ranks: int
    tests: int
    wanted: float = 0
    bare: float = 0


CORPORA: Final = (
    Corpus(name="small", jobs=25, ranks=4, tests=100),
    Corpus(name="wide", jobs=125, ranks=8, tests=200, wanted=300),
    Corpus(name="long", jobs=1, ranks=64, tests=20_000, wanted=40, bare=2.5),
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a command took: seconds, and the megabytes of its largest process."""

    seconds: float
    megabytes: float


def make(corpus: Corpus, folder: Path) -> list[Path]:
    """Write the files of a corpus, the same in each run."""
    dice = random.Random(corpus.name)  # noqa: S311 - times of tests, not secrets
    paths = [
        folder / f"gloo-w{corpus.ranks}-g0-env" / f"suite{job:03}" / f"rank-{rank}.xml"
        for job in range(corpus.jobs)
        for rank in range(corpus.ranks)
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_document(corpus, dice), encoding="utf-8")
    return paths


def _document(corpus: Corpus, dice: random.Random) -> str:
    cases = [_case(number, dice.random()) for number in range(corpus.tests)]
    failed, skipped = (sum(f"<{tag}" in case for case in cases) for tag in ("failure", "skipped"))
    counts = f'errors="0" failures="{failed}" skipped="{skipped}" tests="{corpus.tests}" time="{corpus.tests / 2:.3f}"'
    return (
        f'<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" {counts} '
        f'timestamp="2026-11-01T12:00:00+00:00" hostname="node">{"".join(cases)}</testsuite></testsuites>'
    )


def _case(number: int, seconds: float) -> str:
    inside = ""
    if number % 100 == 7:
        lines = "".join(f"E   tensor {place} of {number} differs on this rank: 1.0 != 2.0&#10;" for place in range(32))
        inside = (
            f'<failure message="AssertionError: 1.0 != 2.0">{lines}</failure><system-out>{"said " * 60}</system-out>'
        )
    elif number % 50 == 3:
        inside = '<skipped type="pytest.skip" message="no GPU">test_all.py:7: no GPU</skipped>'
    start = f'<testcase classname="suites.collectives.test_{number % 40}.TestAll" name="test_case[{number}-float32]"'
    return f'{start} time="{seconds:.3f}">{inside}</testcase>' if inside else f'{start} time="{seconds:.3f}" />'


def command(side: str, paths: Sequence[Path], folder: Path) -> list[str]:
    """The command line of one side."""
    files = [str(path) for path in paths]
    out = str(folder / f"{side}.out.xml")
    python = sys.executable
    match side:
        case "junitparser":
            return [python, "-m", "junitparser", "merge", *files, out]
        case "linear":
            return [python, "-c", LINEAR, out, *files]
        case "expat":
            return [python, "-c", EXPAT, *files]
    return [python, "-m", "allranks", "report", str(folder / "corpus")]


def measure(side: str, paths: Sequence[Path], folder: Path, runs: int) -> Cost:
    """The median of some runs of one side."""
    status = 1 if side == "allranks" else 0  # tests fail in these folders, and allranks says so
    costs = [_run(command(side, paths, folder), status) for _ in range(runs if side in REPEATED else 1)]
    if side == "allranks" and not (folder / "corpus" / "junit.xml").exists():
        sys.exit("allranks merged nothing: it needs to be installed, or on PYTHONPATH")
    return Cost(
        seconds=statistics.median(cost.seconds for cost in costs),
        megabytes=max(cost.megabytes for cost in costs),
    )


def _run(arguments: Sequence[str], expected: int) -> Cost:
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True)
    seconds, kilobytes, status = done.stdout.split()
    if int(status) != expected:
        sys.exit(f"{' '.join(arguments[:5])} … ended with {status}:\n{done.stderr}")
    return Cost(seconds=float(seconds), megabytes=int(kilobytes) / 1024)


def compare(corpus: Corpus, sides: Sequence[str], runs: int) -> list[str]:
    """Measure and print one corpus; what was missed."""
    scratch = Path(tempfile.mkdtemp(prefix="merge-speed-"))
    try:
        paths = make(corpus, scratch / "corpus")
        size = sum(path.stat().st_size for path in paths) / 2**20
        print(f"{corpus.name}: {len(paths)} files of {corpus.tests} testcases, {size:.0f} MB", flush=True)
        costs = {}
        for side in sides:
            costs[side] = measure(side, paths, scratch, runs)
            print(f"  {side:12} {costs[side].seconds:8.2f} s {costs[side].megabytes:6.0f} MB", flush=True)
    finally:
        shutil.rmtree(scratch)
    return _missed(corpus, costs)


def _missed(corpus: Corpus, costs: dict[str, Cost]) -> list[str]:
    ours = costs["allranks"]
    ratios = {side: cost.seconds / ours.seconds for side, cost in costs.items() if side != "allranks"}
    for side, ratio in ratios.items():
        print(f"  {ratio:.3g} times as fast as {side}")
    missed = []
    if ratios.get("junitparser", corpus.wanted) < corpus.wanted:
        missed.append(f"{corpus.name}: {corpus.wanted:g} times as fast as junitparser")
    if corpus.bare and 1 / ratios.get("expat", 1) > corpus.bare:
        missed.append(f"{corpus.name}: at most {corpus.bare:g} times as long as expat")
    if ours.megabytes > MEGABYTES:
        missed.append(f"{corpus.name}: {MEGABYTES} MB")
    return missed


def main() -> None:
    """Measure, print, and fail where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [corpus.name for corpus in CORPORA]
    parser.add_argument("--corpus", choices=names, action="append", help="repeatable; default: all")
    parser.add_argument("--runs", type=int, default=3, help="of allranks and expat; the others run once")
    parser.add_argument("--skip", choices=SIDES[:3], action="append", default=[], help="leave a side out; repeatable")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each command would compile allranks again
    sides = [side for side in SIDES if side not in options.skip]
    chosen = [corpus for corpus in CORPORA if corpus.name in (options.corpus or names)]
    missed = [failure for corpus in chosen for failure in compare(corpus, sides, options.runs)]
    print("\n".join(f"MISSED {failure}" for failure in missed) or "all targets met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
