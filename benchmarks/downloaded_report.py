"""Reading a large ``junit.xml``: ``allranks.junit.stream`` beside junitparser, in seconds and in memory.

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
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "report" / "page"), str(ROOT / "src")]

from page_open import Run, tests_of  # noqa: E402 - the same run
from runs import job  # noqa: E402

from allranks.report.junit import JUnitWriter  # noqa: E402
from allranks.report.junit_case import JUnitForm  # noqa: E402

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
import resource, sys, time
import junitparser
from allranks import junit
from allranks.cli import main
path, *_ = paths = sys.argv[1:]
began = time.monotonic()
{}
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def make_report(folder: Path, tests: int) -> list[Path]:
    """Write the report of a run with so many tests."""

    def text(test: int, number: int) -> str:
        return "".join(f"E   tensor {place} of {test} differs on rank {number}: 1.0 != 2.0\\n" for place in range(40))

    run = Run(name="large", tests=tests, text=text)
    with JUnitWriter(folder / "junit.xml", JUnitForm()) as junit:
        junit.add(job("gloo-w64-g0-env", "collectives", tests_of(run)))
    return list(junit.files)


def measure(side: str, files: list[Path]) -> tuple[float, float]:
    """Seconds to read the files, and megabytes of the process."""
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
                seconds = statistics.median(each for each, _ in took)
                memory[side].append(max(each for _, each in took))
                print(
                    f"{tests:6,} x 64, {size:5.0f} MB: {side:12} {seconds:6.1f} s {memory[side][-1]:6.0f} MB",
                    flush=True,
                )
    missed = [f"{side}: {MEGABYTES} MB" for side in BOUNDED if max(memory[side]) >= MEGABYTES]
    missed += [f"{side}: {GROWTH} MB more" for side in BOUNDED if memory[side][1] - memory[side][0] > GROWTH]
    print("\\n".join(f"MISSED {each}" for each in missed) or "all limits kept")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
