"""Opening ``report.html``: how large the page of a large run is, and how soon a headless Chromium has it ready.

20,000 tests on 64 ranks, of which one in a hundred fails on every rank with 2 kB of text and a time line: where all
ranks say the same, and where no two of them do. Then ten times as many tests. A page is ready when its script filled
the matrix, the failures and the list of tests, and they are laid out. The time is the page's own clock, from the start
of the navigation, and the median of ``--runs`` counts. The browser is started once, each page opened in a fresh tab.

    python benchmarks/page_open.py [--runs 5]

Exit status 1 where a page of 20,000 tests has 1 MB or more, or takes more than 0.5 s.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "report" / "page"), str(ROOT / "src")]


from chromium import Browser, chromium, find_chromium  # noqa: E402 - the tests' own browser
from runs import case, job, passed, rank, write_page  # noqa: E402

from allranks.report.rank_timeline import Collective, RankTimeline  # noqa: E402
from allranks.report.results import TestVerdict  # noqa: E402

MEGABYTES: Final = 1
SECONDS: Final = 0.5
RANKS: Final = 64
READY: Final = """new Promise(done => {
    const look = () => document.documentElement.dataset.ready
        ? requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)) : setTimeout(look, 1);
    look();
})"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that a page is made of.

    Attributes:
        text: What a rank of a failing test says, by the numbers of test and rank.
        is_bounded: Whether the two limits hold for it.
    """

    name: str
    tests: int
    text: Callable[[int, int], str]
    is_bounded: bool = True


def _alike(test: int, _: int) -> str:
    return "".join(f"E   tensor {place} of {test} differs on this rank: 1.0 != 2.0\n" for place in range(40))


def _different(test: int, number: int) -> str:
    dice = random.Random(test * RANKS + number)  # noqa: S311 - text that does not compress, not a secret
    return dice.randbytes(1000).hex()


RUNS: Final = (
    Run(name="ranks say the same", tests=20_000, text=_alike),
    Run(name="no two ranks do", tests=20_000, text=_different),
    Run(name="ten times as many", tests=200_000, text=_alike, is_bounded=False),
)


def tests_of(run: Run) -> Iterator[TestVerdict]:
    """The tests of a run."""
    dice = random.Random(run.name)  # noqa: S311 - times of tests, not secrets
    good = passed("any", RANKS)
    for number in range(run.tests):
        name = f"suites/collectives/test_{number % 40}.py::TestAll::test_case_{number % 97}[{number}-float32]"
        if number % 100 == 7:
            yield case(
                name,
                [rank(n, "failed", at=1.0 + n, message="1.0 != 2.0", text=run.text(number, n)) for n in range(RANKS)],
            )
        else:
            ranks = [replace(good.ranks[0], duration=dice.expovariate(3)), *good.ranks[1:]]
            yield TestVerdict(nodeid=name, classname="", name=name, verdict=good.verdict, ranks=ranks)


def _timeline(test: int) -> RankTimeline:
    """The timeline of a failing test: 16 collectives of all ranks."""
    dice = random.Random(test)  # noqa: S311 - times of calls, not secrets
    collectives = (
        Collective.of(
            "default", number, "all_reduce", {rank: number / 20 + dice.random() / 20 for rank in range(RANKS)}
        )
        for number in range(1, 17)
    )
    return RankTimeline(began=0.0, collectives=tuple(collectives), passed=0, stdout="step 1\nloss 3.5\n")


def seconds_to_open(browser: Browser, path: Path) -> float:
    """From the navigation to a page that is filled and laid out."""
    page = browser.page()
    page.size(1400, 900)
    page.go(path)
    took = float(page.run(READY)) / 1000
    page.close()
    return took


def measure(browser: Browser, run: Run, runs: int) -> list[str]:
    """Make a page, open it, print what it took; what was missed."""
    with tempfile.TemporaryDirectory(prefix="page-open-") as folder:
        tests = list(tests_of(run))
        timelines = {test.nodeid: _timeline(number) for number, test in enumerate(tests) if test.verdict.is_bad}
        path = write_page(Path(folder), [job("gloo-w64-g0-env", "collectives", tests, timelines=timelines)])
        megabytes = path.stat().st_size / 1e6
        took = statistics.median(seconds_to_open(browser, path) for _ in range(runs))
    print(f"{run.tests:7,} tests x {RANKS} ranks, {run.name:20} {megabytes:6.2f} MB {took:6.2f} s", flush=True)
    missed = []
    if run.is_bounded and megabytes >= MEGABYTES:
        missed.append(f"{run.name}: {MEGABYTES} MB")
    if run.is_bounded and took > SECONDS:
        missed.append(f"{run.name}: {SECONDS} s")
    return missed


def main() -> None:
    """Measure, print, and fail where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="each page is opened this often, and the median counts")
    options = parser.parse_args()
    executable = find_chromium() or sys.exit("there is no Chromium on the PATH")
    with chromium(executable) as browser:
        missed = [failure for run in RUNS for failure in measure(browser, run, options.runs)]
    print("\n".join(f"MISSED {failure}" for failure in missed) or "all limits kept")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
