"""Measuring durations, and updating the stored ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.outcomes import Outcome
from allranks.report.judged import CellSuite, Share
from allranks.report.results import RankResult, TestVerdict, Verdict, VerdictKind, VerdictRule
from allranks.runner.durations import CHANGE, NOTICEABLE, Durations, Meter, rounded, update

TEST = "s/test_a.py::test_one"

SECONDS = st.floats(0, 1e6, allow_nan=False)
NAMES = st.sampled_from("abcd")
DURATIONS = st.dictionaries(NAMES, st.dictionaries(NAMES, st.dictionaries(NAMES, SECONDS, max_size=4)), max_size=3)


def verdict_of(nodeid, seconds, kind=VerdictKind.PASSED, *, rule=VerdictRule.PASSED, executed=True):
    """A test whose slowest rank took `seconds`."""
    ranks = tuple(
        RankResult(nodeid=nodeid, classname="c", name="n", rank=rank, outcome=Outcome.PASSED, duration=duration)
        for rank, duration in enumerate((0.0, seconds))
    )
    verdict = Verdict(kind=kind, rule=rule, executed=executed)
    return TestVerdict(nodeid=nodeid, classname="c", name="n", verdict=verdict, ranks=ranks)


def job(*tests, cell="gloo-w2-g0-env", suite="rpc", share=None):
    return CellSuite(cell=cell, suite=suite, tests=tests, axes={"backend": cell.partition("-")[0]}, share=share)


def measured(jobs) -> Durations:
    meter = Meter()
    for added in jobs:
        meter.add(added)
    return meter.durations


def skipped(nodeid, seconds):
    return verdict_of(nodeid, seconds, VerdictKind.SKIPPED, rule=VerdictRule.SKIPPED, executed=False)


def test_a_duration_is_that_of_the_slowest_rank_in_the_slowest_cell():
    jobs = [job(verdict_of(TEST, seconds), cell=cell) for cell, seconds in (("gloo-w2", 1.0), ("gloo-w4", 3.0))]
    assert measured(jobs) == measured(reversed(jobs)) == {"rpc": {"gloo": {TEST: 3.0}}}


def test_backends_and_suites_are_separate():
    jobs = [
        job(verdict_of(TEST, 1.0)),
        job(verdict_of(TEST, 2.0), cell="nccl-w2"),
        job(verdict_of(TEST, 3.0), suite="other"),
    ]
    assert measured(jobs) == {"rpc": {"gloo": {TEST: 1.0}, "nccl": {TEST: 2.0}}, "other": {"gloo": {TEST: 3.0}}}


def test_shards_count_for_their_suite():
    jobs = [
        job(
            verdict_of(f"{TEST}_{number}", 1.0),
            suite=f"rpc@{number}of2",
            share=Share(suite="rpc", number=number, count=2),
        )
        for number in (1, 2)
    ]
    assert measured(jobs) == {"rpc": {"gloo": {f"{TEST}_1": 1.0, f"{TEST}_2": 1.0}}}


@pytest.mark.parametrize("kind", [VerdictKind.FAILURE, VerdictKind.ERROR])
def test_failed_tests_have_no_duration(kind):
    assert measured([job(verdict_of(TEST, 9.0, kind), verdict_of("t::ok", 1.0))]) == {"rpc": {"gloo": {"t::ok": 1.0}}}


def test_job_errors_have_no_duration():
    of_job = verdict_of("allranks::job", 9.0, VerdictKind.SKIPPED, rule=VerdictRule.JOB)
    assert measured([job(of_job, verdict_of(TEST, 1.0))]) == {"rpc": {"gloo": {TEST: 1.0}}}


def test_a_skip_counts_if_other_tests_executed():
    jobs = [job(skipped(TEST, 0.01)), job(verdict_of("t::ok", 1.0), suite="rpc")]
    assert measured(jobs) == {"rpc": {"gloo": {TEST: 0.01, "t::ok": 1.0}}}


def test_a_cell_without_executed_tests_is_ignored():
    assert measured([job(skipped(TEST, 0.01))]) == {}


def test_a_shard_of_skips_counts_if_another_shard_executed_tests():
    of = {number: Share(suite="rpc", number=number, count=2) for number in (1, 2)}
    jobs = [
        job(skipped(TEST, 0.01), suite="rpc@1of2", share=of[1]),
        job(verdict_of("t::ok", 1.0), suite="rpc@2of2", share=of[2]),
    ]
    assert measured(jobs) == {"rpc": {"gloo": {TEST: 0.01, "t::ok": 1.0}}}


def test_only_jobs_that_count_are_measured():
    meter = Meter(lambda facts: facts.suite == "rpc")
    for added in (job(verdict_of(TEST, 1.0)), job(verdict_of(TEST, 2.0), suite="other")):
        meter.add(added)
    assert meter.durations == {"rpc": {"gloo": {TEST: 1.0}}}


def test_a_cell_without_a_backend_is_ignored():
    assert measured([CellSuite(cell="c", suite="s", tests=(verdict_of(TEST, 1.0),))]) == {}


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [(0, 0.001), (0.00449, 0.004), (0.12345, 0.123), (1.23456, 1.23), (98.76, 98.8), (12345, 12300)],
)
def test_seconds_have_three_digits_and_are_at_least_a_millisecond(seconds, kept):
    assert rounded(seconds) == kept


@pytest.mark.parametrize(
    ("known", "now", "kept"),
    [
        (1.0, 1.2, 1.0),
        (1.0, 1.3, 1.3),
        (1.0, 0.7, 0.7),
        (0.01, 0.05, 0.01),
        (0.01, 0.07, 0.07),
    ],
)
def test_a_stored_duration_is_kept_until_a_measurement_differs_noticeably(known, now, kept):
    assert update({"s": {"gloo": {TEST: known}}}, {"s": {"gloo": {TEST: now}}}) == {"s": {"gloo": {TEST: kept}}}


def test_durations_that_a_run_did_not_measure_are_kept():
    known = {"s": {"gloo": {"t::a": 1.0}, "nccl": {"t::a": 2.0}}, "other": {"gloo": {"t::b": 3.0}}}
    assert update(known, {"s": {"gloo": {"t::new": 5.0}}}) == {
        "s": {"gloo": {"t::a": 1.0, "t::new": 5.0}, "nccl": {"t::a": 2.0}},
        "other": {"gloo": {"t::b": 3.0}},
    }


def flat(durations):
    return {
        (suite, backend, test): seconds
        for suite, backends in durations.items()
        for backend, tests in backends.items()
        for test, seconds in tests.items()
    }


@given(DURATIONS, DURATIONS)
def test_all_known_and_measured_tests_are_stored(known, new):
    assert flat(update(known, new)).keys() == flat(known).keys() | flat(new).keys()


@given(DURATIONS, DURATIONS)
def test_a_stored_duration_is_close_to_the_last_measurement(known, new):
    kept = flat(update(known, new))
    for key, seconds in flat(new).items():
        before = flat(known).get(key, seconds)
        assert abs(kept[key] - seconds) <= max(NOTICEABLE, CHANGE * before) + 0.005 * seconds + 0.001


@given(DURATIONS, DURATIONS)
def test_the_same_measurement_again_changes_nothing(known, new):
    once = update(known, new)
    assert update(once, new) == once


@given(DURATIONS, DURATIONS)
def test_runs_of_different_suites_may_be_merged_in_any_order(first, second):
    one = {f"one-{suite}": backends for suite, backends in first.items()}
    assert update(update({}, one), second) == update(update({}, second), one)


@given(SECONDS)
def test_rounding_again_changes_nothing(seconds):
    assert rounded(rounded(seconds)) == rounded(seconds)
    assert abs(rounded(seconds) - seconds) <= max(0.001, 0.005 * seconds)
