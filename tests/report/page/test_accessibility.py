"""The page by axe-core, in light and wide, dark and narrow: it finds nothing."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chromium import Page
from runs import TRACE, case, failed, job, passed, rank, skipped, write_page
from services import CLIENTS

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import PhaseEnd
from allranks.report.rank_timeline import Collective, RankTimeline

pytestmark = [pytest.mark.browser, pytest.mark.node]

SUM, KILLED = "t/test_sums.py::TestSums::test_sum[float32]", "t/test_ends.py::test_killed"
RUN = (
    "axe.run(document, {preload: false, resultTypes: ['violations']}).then(found => found.violations.map("
    "each => `${each.impact} ${each.id}: ${each.nodes.map(node => node.html.slice(0, 200)).join(' ')}`))"
)


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's script, which is one of the clients of the report."""
    return (CLIENTS / "npm" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def every_kind(size: int) -> list[Any]:
    """Tests of every verdict, one with all that is told of a failure."""
    killed = [
        rank(0, "crashed", at=1.0, message="rank 0 was killed by SIGKILL", stdout="\n".join(map(str, range(99)))),
        *(rank(number, "aborted", at=2.0, caused_by=0, message="in all_reduce") for number in range(1, size)),
    ]
    return [
        failed(SUM, size, "AssertionError: 5.0 != 6.0", TRACE * 9, stdout="loss nan\n", stderr="a warning\n"),
        case(KILLED, killed),
        passed("t/test_sums.py::test_other", size, 2.5),
        skipped("t/test_sums.py::test_late", "Need 4 ranks", size),
        skipped("t/test_sums.py::test_nccl", "Need NCCL", size, policy="pass"),
        case("t/test_sums.py::flaky", [rank(0)], earlier=[[rank(0, "failed", at=1, message="reset", text="TRACE")]]),
    ]


def timeline(size: int) -> RankTimeline:
    phases = {1: (PhaseEnd(when="setup", outcome=Outcome.PASSED, seconds=0.4),)}
    entered = {number: 0.5 for number in range(size) if number != 1}
    collectives = (Collective.of("default", 1, "all_reduce", entered),)
    return RankTimeline(began=0.0, phases=phases, collectives=collectives, passed=0, stdout="loss 3.0\n")


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Four cells, of which one is good, one flaky and two are bad."""
    suites = [
        job(
            f"gloo-w{size}", "collectives", every_kind(size), timelines={SUM: timeline(size)}, axes={"world_size": size}
        )
        for size in (2, 4)
    ]
    good = job("gloo-w1", "collectives", [passed(SUM, 1)] * 20, axes={"world_size": 1})
    flaky = job("gloo-w1", "other", every_kind(1)[-1:], axes={"world_size": 1})
    folder = tmp_path / "cells" / "gloo-w4" / "collectives" / "attempt-1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").touch()
    return write_page(tmp_path, [good, flaky, *suites], policy="pass")


@pytest.mark.parametrize("is_dark_and_narrow", [False, True], ids=["light-wide", "dark-narrow"])
@pytest.mark.parametrize("test", ["", SUM, KILLED])
def test_axe_finds_nothing(page: Page, report: Path, axe: str, is_dark_and_narrow: bool, test: str) -> None:
    width = 390 if is_dark_and_narrow else 1400
    page.size(width, 900)
    if is_dark_and_narrow:
        page.dark()
    page.open(report, f"#t={quote(f'gloo-w4/collectives/{test}', safe='')}" if test else "")
    page.run("document.querySelectorAll('#detail details').forEach(each => each.open = true)")
    page.run(f"{axe}; 0")
    assert page.run(RUN) == []
    assert page.run("document.documentElement.scrollWidth") <= width
