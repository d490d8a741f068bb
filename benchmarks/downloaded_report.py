"""Reading a large ``junit.xml``: ``allranks.junit.stream`` beside junitparser, in processor time and memory.

The report has 20,000 tests on 64 ranks, of which one in a hundred fails on every rank with 2 kB of text each.
Another has a tenth of that. Each side reads it in a process of its own:

- **stream**: ``allranks.junit.stream``, with the outcome, time and text of every rank.
- **show**: ``allranks show --failed``.
- **load**: ``allranks.junit.load``, which holds the report.
- **junitparser**: ``JUnitXml.fromfile``, and one pass over its testcases.

    python benchmarks/downloaded_report.py [--runs 3]

Exit status 1 where stream or show needs 100 MB, or 10 MB more for the large report than for the small one.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "report" / "page"), str(ROOT / "src")]

from runs import case, job, rank  # noqa: E402 - the tests' own runs

from allranks.report.junit import JUnitWriter  # noqa: E402
from allranks.report.junit_case import JUnitForm  # noqa: E402
from allranks.report.results import TestVerdict  # noqa: E402

RANKS: Final = 64
MEGABYTES: Final = 100
GROWTH: Final = 10
SIZES: Final = (2_000, 20_000)
SIDES: Final = {
    "stream": "for case in junit.stream(path): [(rank.outcome, rank.time, rank.text) for rank in case.ranks]",
    "show": "sys.stdout = open('/dev/null', 'w'); main(['show', path, '--failed'])",
    "load": "for case in junit.load(path).cases(): [(rank.outcome, rank.time, rank.text) for rank in case.ranks]",
    "junitparser": (
        "for path in paths:\n for suite in junitparser.JUnitXml.fromfile(path):\n  for case in suite: case.result"
    ),
}
BOUNDED: Final = ("stream", "show")
READ: Final = """\
import re, sys, time
import junitparser
from allranks import junit
from allranks.cli.main import main
path, *_ = paths = sys.argv[1:]
began = time.process_time()
{}
took = time.process_time() - began
# Not ru_maxrss: a process starts with that of the one that started it.
print(took, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""


def tests_of(count: int) -> Iterator[TestVerdict]:
    """Tests of 64 ranks whose times differ, of which one in a hundred fails on every rank."""
    dice = random.Random(count)  # noqa: S311 - times of tests, not secrets
    for test in range(count):
        wrong = test % 100 == 7
        yield case(
            f"suites/test_{test % 40}.py::TestAll::test_case[{test}-float32]",
            [
                rank(number, "failed", at=1.0, message="1.0 != 2.0", text=_text(test, number))
                if wrong
                else rank(number, duration=dice.expovariate(3))
                for number in range(RANKS)
            ],
        )


def _text(test: int, number: int) -> str:
    return "".join(f"E   tensor {place} of {test} differs on rank {number}: 1.0 != 2.0\n" for place in range(40))


def make_report(folder: Path, count: int) -> list[Path]:
    """Write the report of a run with so many tests."""
    with JUnitWriter(folder / "junit.xml", JUnitForm()) as junit:
        junit.add(job("gloo-w64-g0-env", "collectives", tests_of(count)))
    return list(junit.files)


def measure(side: str, files: list[Path]) -> tuple[float, float]:
    """Seconds of the processor to read the files, and megabytes of the process."""
    command = [sys.executable, "-c", READ.format(SIDES[side]), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "src")})
    if done.returncode:
        sys.exit(done.stderr)
    seconds, kilobytes = done.stderr.splitlines()[-1].split()
    return float(seconds), float(kilobytes) / 1024


def main() -> None:
    """Measure, print, and fail where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="each is read this often, and the median counts")
    options = parser.parse_args()
    memory: dict[str, list[float]] = {side: [] for side in SIDES}
    for tests in SIZES:
        with tempfile.TemporaryDirectory(prefix="downloaded-report-") as folder:
            files = make_report(Path(folder), tests)
            size = sum(file.stat().st_size for file in files) / 1e6
            for side in SIDES:
                took = [measure(side, files) for _ in range(options.runs)]
                seconds = statistics.median(item for item, _ in took)
                memory[side].append(max(item for _, item in took))
                print(
                    f"{tests:6,} x 64, {size:5.0f} MB: {side:12} {seconds:6.1f} s {memory[side][-1]:6.0f} MB",
                    flush=True,
                )
    missed = [f"{side}: {MEGABYTES} MB" for side in BOUNDED if max(memory[side]) >= MEGABYTES]
    missed += [f"{side}: {GROWTH} MB more" for side in BOUNDED if memory[side][1] - memory[side][0] > GROWTH]
    print("\n".join(f"MISSED {failure}" for failure in missed) or "all limits kept")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
