"""What must hold of a merge whatever the ranks left: order never matters, and a second merge changes nothing."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from allranks.report.judged import CellSuite
from allranks.report.merging import merge

ELEMENTS = {
    "passed": "",
    "failed": '<failure message="boom">trace</failure>',
    "errored": '<error message="lost"/>',
    "skipped": '<skipped type="pytest.skip" message="not here"/>',
    "xfailed": '<skipped type="pytest.xfail" message="known"/>',
}
NAMES = st.sampled_from("abcdef")
RANKS = st.lists(st.dictionaries(NAMES, st.sampled_from(sorted(ELEMENTS)), max_size=5), min_size=1, max_size=4)


def write(folder, ranks, shuffle=sorted):
    """The XML of each rank, its testcases in the order that `shuffle` brings them into."""
    job = folder / f"gloo-w{len(ranks)}-g0-env" / "unit"
    job.mkdir(parents=True)
    for rank, tests in enumerate(ranks):
        names = shuffle(tests)
        cases = [
            f'<testcase classname="t" name="{name}" time="0.5">{ELEMENTS[tests[name]]}</testcase>' for name in names
        ]
        text = f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"
        (job / f"rank-{rank}.xml").write_text(text)


def verdicts(folder):
    suites: list[CellSuite] = []
    merge(folder, environ={}, observers=[suites.append])
    return {test.nodeid: test.verdict for suite in suites for test in suite.tests}


@given(ranks=RANKS, order=st.randoms())
def test_the_order_of_testcases_makes_no_difference(ranks, order):
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch) / "one", ranks)
        write(Path(scratch) / "other", ranks, lambda tests: order.sample(sorted(tests), len(tests)))
        assert verdicts(Path(scratch) / "one") == verdicts(Path(scratch) / "other")


@given(ranks=RANKS)
def test_merging_again_changes_no_byte(ranks):
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        write(folder, ranks)
        reports = []
        for _ in range(2):
            merged = merge(folder, environ={})
            reports.append([path.read_bytes() for path in (merged.junit, merged.summary)])
        assert reports[0] == reports[1]


@given(ranks=RANKS)
def test_every_test_that_a_rank_reports_has_a_verdict_over_all_ranks(ranks):
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        write(folder, ranks)
        found = verdicts(folder)
        names = {name for tests in ranks for name in tests}
        assert found.keys() == {f"t::{name}" for name in names}
        for name in names:
            everywhere = all(name in tests for tests in ranks)
            assert everywhere or found[f"t::{name}"].is_bad
