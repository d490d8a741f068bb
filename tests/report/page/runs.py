"""Runs that pages are made of: judged values, without files behind them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.report.axis_correlation import Evidence
from allranks.report.judge.rules import VerdictPolicy, verdict
from allranks.report.judged import CellSuite, MergedRun
from allranks.report.page.writer import PageWriter
from allranks.report.results import RankResult, TestVerdict

TRACE = """\
rank = 1, world_size = 4, device = device(type='cpu')

    def test_all_reduce_sums_over_ranks(rank, world_size, device):
        tensor = torch.full((3,), float(rank), device=device)
        dist.all_reduce(tensor)
>       assert tensor.tolist() == [sum(range(world_size))] * 3
E       assert [5.0, 5.0, 5.0] == [6, 6, 6]

suites/collectives/test_reductions.py:31: AssertionError"""


def rank(number: int, outcome: str | Outcome = "passed", nodeid: str = "t.py::test", **said: Any) -> RankResult:
    return RankResult(nodeid=nodeid, classname="", name="", rank=number, outcome=Outcome(outcome), **said)


def case(
    nodeid: str, ranks: Sequence[RankResult], *, earlier: Sequence[Sequence[RankResult]] = (), skip: Any = "skip"
) -> TestVerdict:
    setting = VerdictPolicy(skip=skip)
    before = tuple(
        TestVerdict(
            nodeid=nodeid, classname="", name="", verdict=verdict(tried, setting), ranks=tuple(tried), number=number
        )
        for number, tried in enumerate(earlier, 1)
    )
    name = nodeid.rpartition("::")[2]
    return TestVerdict(
        nodeid=nodeid, classname="", name=name, verdict=verdict(ranks, setting), ranks=tuple(ranks), earlier=before
    )


def passed(nodeid: str, ranks: int = 2, duration: float = 0.01) -> TestVerdict:
    return case(nodeid, [rank(number, duration=duration) for number in range(ranks)])


def failed(
    nodeid: str, ranks: int = 2, message: str = "AssertionError: 1 != 2", text: str = "", **said: Any
) -> TestVerdict:
    """Rank 1 fails and leads; the others are aborted because of it."""
    results = [
        rank(number, "failed", at=1.0, message=message, text=text or message, duration=0.5, **said)
        if number == 1
        else rank(number, "aborted", at=1.5, caused_by=1, message="in all_reduce", text=f"stack of rank {number}")
        for number in range(ranks)
    ]
    return case(nodeid, results)


def skipped(
    nodeid: str, reason: str = "Need at least 2 CUDA devices", ranks: int = 2, policy: Any = "skip"
) -> TestVerdict:
    kind: dict[str, Any] = {"skip_kind": SkipKind.ENVIRONMENT, "skip_code": 75}
    return case(nodeid, [rank(number, "skipped", message=reason, **kind) for number in range(ranks)], skip=policy)


def job(cell: str, suite: str, tests: Iterable[TestVerdict], **said: Any) -> CellSuite:
    facts = {"engine": "process", "attempt": 1, "elapsed": 3.5, **said}
    folder = f"cells/{cell}/{suite}/attempt-{facts['attempt']}"
    return CellSuite(cell=cell, suite=suite, tests=tuple(tests), **{"folder": folder, **facts})


def gloo_matrix(tests: Callable[[int, str], Iterable[TestVerdict]], suite: str = "collectives") -> list[CellSuite]:
    """Nine cells, each with the tests of its world size and init method."""
    return [
        job(
            f"gloo-w{size}-g0-{init}",
            suite,
            tests(size, init),
            axes={"backend": "gloo", "world_size": size, "gpu_count": 0, "init_method": init},
        )
        for size, init in product([1, 2, 4], ["env", "tcp", "file"])
    ]


def write_page(folder: Path, suites: Iterable[CellSuite], **said: Any) -> Path:
    """The page of a run with these jobs."""
    path = folder / "report.html"
    writer, evidence = PageWriter(path), Evidence()
    rows = []
    for suite in suites:
        evidence.add(suite)
        writer.add(suite)
        rows.append(suite.row)
    writer.write(
        MergedRun(
            folder=folder,
            junit=folder / "junit.xml",
            page=path,
            summary=folder / "summary.md",
            **{"run_id": "r1", "suites": tuple(rows), "blames": evidence.of_groups(), **said},
        ),
        evidence,
    )
    return path
