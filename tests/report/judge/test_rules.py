"""The verdict rules, one by one, and what holds for any ranks."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.errors import ExitCode
from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.skip_codes import multi_gpu
from allranks.report.judge.rules import VerdictPolicy, primary_failure, verdict
from allranks.report.results import RankResult, VerdictKind, VerdictRule, severity

PLAIN = VerdictPolicy()
PASSING = VerdictPolicy(skip="pass")
ENDED = VerdictPolicy(job_has_ended=True)


def result(outcome: Outcome | str, rank: int = 0, **said: Any) -> RankResult:
    return RankResult(nodeid="t.py::test_x", classname="t", name="test_x", rank=rank, outcome=Outcome(outcome), **said)


def ranks(*outcomes: str, **said: Any) -> list[RankResult]:
    return [result(outcome, rank, **said) for rank, outcome in enumerate(outcomes)]


skip_kinds = st.sampled_from([None, *SkipKind])
results = st.builds(
    result,
    st.sampled_from(Outcome),
    st.integers(0, 5),
    at=st.none() | st.floats(0, 100),
    consequence=st.booleans(),
    caused_by=st.none() | st.integers(0, 5),
    skip_kind=skip_kinds,
    skip_code=st.none() | st.integers(70, 90),
    gpus_needed=st.none() | st.integers(1, 100),
    message=st.sampled_from(["", "boom", "no GPU"]),
    text=st.sampled_from(["", "trace"]),
)


def one_each(least: int) -> st.SearchStrategy[list[RankResult]]:
    return st.lists(results, min_size=least, max_size=6, unique_by=lambda result: result.rank)


settings = st.builds(
    VerdictPolicy,
    skip=st.sampled_from(["skip", "pass"]),
    mixed_skip=st.sampled_from([(), ("*",)]),
    gpus=st.integers(0, 8),
    job_has_ended=st.booleans(),
)
GOODNESS = {VerdictKind.PASSED: 0, VerdictKind.SKIPPED: 1, VerdictKind.FAILURE: 2, VerdictKind.ERROR: 2}


@given(one_each(0), settings, st.randoms())
def test_the_order_of_ranks_makes_no_difference(
    given_ranks: list[RankResult], setting: VerdictPolicy, rng: random.Random
):
    shuffled = list(given_ranks)
    rng.shuffle(shuffled)
    assert verdict(shuffled, setting) == verdict(given_ranks, setting)


@given(one_each(1), results, settings)
def test_a_rank_that_did_worse_never_makes_a_verdict_better(
    given_ranks: list[RankResult], worse: RankResult, setting: VerdictPolicy
):
    if severity(worse.outcome) < max(severity(rank.outcome) for rank in given_ranks):
        return
    before, after = verdict(given_ranks, setting), verdict([*given_ranks, replace(worse, rank=6)], setting)
    assert GOODNESS[after.kind] >= GOODNESS[before.kind]


@given(one_each(1), settings)
def test_a_bad_rank_is_never_in_a_good_verdict(given_ranks: list[RankResult], setting: VerdictPolicy):
    if any(rank.outcome.is_bad for rank in given_ranks):
        assert verdict(given_ranks, setting).is_bad


@given(one_each(1), settings)
def test_a_bad_verdict_always_has_a_message_a_text_and_an_exit_code(
    given_ranks: list[RankResult], setting: VerdictPolicy
):
    judged = verdict(given_ranks, setting)
    if judged.is_bad:
        assert judged.message
        assert judged.text.startswith("rank")
        assert judged.exit_code is not ExitCode.OK


def test_rule_1_a_missing_rank_is_an_error_that_still_names_the_first_to_go_wrong():
    judged = verdict([result("missing"), result("failed", 1, message="boom", at=1.0)], PLAIN)
    assert (judged.kind, judged.rule, judged.exit_code) == (
        VerdictKind.ERROR,
        VerdictRule.UNACCOUNTED,
        ExitCode.UNACCOUNTED,
    )
    assert judged.message == "rank 0 is missing: no result arrived. Primary failure: rank 1 failed: boom"
    assert judged.leading == 1


@pytest.mark.parametrize(
    ("outcome", "said", "kind"),
    [
        ("crashed", {"at": 1.0, "message": "rank 1 was killed by SIGSEGV"}, VerdictKind.ERROR),
        ("crashed", {"at": 1.0, "message": "rank 1 exited with code 3 during the test"}, VerdictKind.ERROR),
        ("crashed", {"message": "rank 1 was killed by SIGABRT"}, VerdictKind.ERROR),
        ("failed", {"at": 1.0, "message": "boom"}, VerdictKind.FAILURE),
        ("errored", {"at": 1.0, "message": "no such fixture"}, VerdictKind.ERROR),
    ],
)
@pytest.mark.parametrize("peer", ["passed", "aborted", "missing"])
def test_rule_1_a_primary_failure_explains_missing_peers_of_a_job_that_has_ended(outcome, said, kind, peer):
    given_ranks = [result("missing", 0, message="no result arrived"), result(outcome, 1, **said), result(peer, 2)]
    judged = verdict(given_ranks, ENDED)
    assert (judged.kind, judged.rule, judged.exit_code, judged.leading) == (
        kind, VerdictRule.PRIMARY_FAILURE, ExitCode.TESTS_FAILED, 1,
    )  # fmt: skip
    assert said["message"] in judged.message
    assert "missing: no result arrived" in judged.message
    assert verdict(given_ranks, PLAIN).exit_code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize(
    "others",
    [
        [],
        [result("passed", 1)],
        [result("skipped", 1)],
        [result("xfailed", 1)],
        [result("aborted", 1, caused_by=0)],
        [result("timed_out", 1, at=1.0)],
        [result("failed", 1, at=1.0, consequence=True, caused_by=0)],
        [result("crashed", 1, at=1.0, consequence=True)],
    ],
    ids=str,
)
def test_rule_1_without_a_primary_failure_a_missing_rank_is_unaccounted_for_after_the_end_too(others):
    judged = verdict([result("missing", 0), *others], ENDED)
    assert (judged.rule, judged.exit_code) == (VerdictRule.UNACCOUNTED, ExitCode.UNACCOUNTED)


@given(one_each(0), settings)
def test_the_end_of_a_job_makes_no_verdict_better(given_ranks: list[RankResult], setting: VerdictPolicy):
    during, after = (verdict(given_ranks, setting._replace(job_has_ended=ended)) for ended in (False, True))
    assert GOODNESS[after.kind] == GOODNESS[during.kind]
    if all(rank.outcome is not Outcome.MISSING for rank in given_ranks):
        assert after == during


def test_rule_1_no_rank_at_all_is_an_error():
    assert verdict([], PLAIN).exit_code is ExitCode.UNACCOUNTED


def test_rule_1_an_abort_that_no_rank_explains_is_an_error_of_supervision():
    judged = verdict(ranks("passed", "aborted"), PLAIN)
    assert (judged.rule, judged.exit_code) == (VerdictRule.UNACCOUNTED, ExitCode.UNACCOUNTED)
    assert "the supervisor itself failed" in judged.message


def test_rule_1_an_abort_that_no_rank_explains_says_what_the_aborted_ranks_say():
    judged = verdict(ranks("aborted", "aborted", message="the job was ended from outside"), PLAIN)
    assert judged.message == ("ranks 0, 1 were aborted, although no rank had failed: the job was ended from outside.")


def test_rule_1_aborted_ranks_in_different_places_are_told_apart():
    waiting, late = (replace(rank, message=f"ended at {rank.rank}") for rank in ranks("aborted", "aborted"))
    assert verdict([waiting, late], PLAIN).message == (
        "ranks 0, 1 were aborted, although no rank had failed: rank 0: ended at 0; rank 1: ended at 1."
    )


def test_rule_1_the_message_stays_short_however_much_the_aborted_ranks_say():
    aborted = [result("aborted", rank, message=f"{rank}" * 100) for rank in range(10, 74)]
    assert len(verdict(aborted, PLAIN).message) < 800


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("failed", VerdictKind.FAILURE),
        ("errored", VerdictKind.ERROR),
        ("crashed", VerdictKind.ERROR),
        ("timed_out", VerdictKind.ERROR),
    ],
)
def test_rule_2_the_leading_outcome_decides_the_kind(outcome: str, kind: VerdictKind):
    judged = verdict(ranks("passed", outcome), PLAIN)
    assert (judged.kind, judged.rule, judged.leading, judged.reason) == (kind, VerdictRule.PRIMARY_FAILURE, 1, outcome)


def test_rule_2_the_first_to_arrive_leads_however_bad_the_later_ones_are():
    judged = verdict([result("crashed", 0, at=2.0), result("failed", 1, at=1.0, message="boom")], PLAIN)
    assert (judged.kind, judged.leading, judged.message) == (VerdictKind.FAILURE, 1, "rank 1 failed: boom")


def test_rule_2_a_consequence_does_not_lead_even_when_its_time_is_earlier():
    judged = verdict([result("crashed", 0, at=1.0, consequence=True), result("failed", 1, at=1.5)], PLAIN)
    assert judged.leading == 1


def test_rule_2_an_aborted_rank_explains_and_does_not_decide():
    judged = verdict([result("aborted", 0, at=0.5, caused_by=1), result("failed", 1, at=1.0)], PLAIN)
    assert (judged.kind, judged.leading) == (VerdictKind.FAILURE, 1)
    assert judged.text.splitlines()[0] == "rank 0 aborted by rank 1; rank 1 failed (primary failure)"


def test_rule_2_a_message_that_names_its_rank_is_not_told_twice():
    judged = verdict([result("passed"), result("crashed", 1, message="rank 1 was killed by SIGKILL")], PLAIN)
    assert judged.message == "rank 1 was killed by SIGKILL"


def test_rule_2_the_message_says_where_a_stopped_peer_was():
    where = "aborted by rank 0 while waiting at t.py:5 in test_x"
    stopped = [result("aborted", rank, at=2.0, caused_by=0, message=where) for rank in (1, 2, 4, 5)]
    judged = verdict([result("failed", 0, at=1.0, message="x"), *stopped], PLAIN)
    assert judged.message == f"rank 0 failed: x (ranks 1, 2, 4, 5: {where})"


PARTED = "the ranks' calls differ: rank 0 called barrier #1; rank 0 waited for it; not finished after 8 s (limits.test)"


@pytest.mark.parametrize(
    ("outcome", "message", "sentence"),
    [
        (
            "timed_out",
            "not finished after 60 s (limits.test)",
            "rank 1 timed out: not finished after 60 s (limits.test)",
        ),
        (
            "timed_out",
            "tight timeout: not finished after 2 s",
            "rank 1 timed out: tight timeout: not finished after 2 s",
        ),
        ("timed_out", PARTED, f"rank 1 timed out: {PARTED}"),
        ("timed_out", "ended by pytest-timeout after 8 s", "rank 1 timed out: ended by pytest-timeout after 8 s"),
        (
            "timed_out",
            "rank 1 timed out: not finished after 20 s",
            "rank 1 timed out: not finished after 20 s",
        ),  # an older report
        ("crashed", "rank 1 was killed by SIGKILL", "rank 1 was killed by SIGKILL"),
        ("crashed", "rank 1 exited with code 3 during the test", "rank 1 exited with code 3 during the test"),
        ("failed", "", "rank 1 failed"),
    ],
)
def test_message_and_text_name_a_rank_and_its_outcome_once(outcome: str, message: str, sentence: str):
    judged = verdict([result("passed"), result(outcome, 1, message=message)], PLAIN)
    [section] = [line for line in judged.text.splitlines() if line.startswith("rank 1")]
    assert (judged.message, section) == (sentence, sentence)


@pytest.mark.parametrize(
    ("message", "section"),
    [
        ("aborted by rank 0 while waiting at t.py:5 in test_x", "ranks 1, 2 aborted by rank 0 while waiting at t.py:5"),
        ("aborted by rank 0, which skipped", "ranks 1, 2 aborted by rank 0, which skipped"),
        ("aborted by the launching process, which did not", "ranks 1, 2 aborted by the launching process, which did"),
        ("the job was ended from outside", "ranks 1, 2 aborted: the job was ended from outside"),
        ("", "ranks 1, 2 aborted"),
    ],
)
def test_the_text_says_once_that_ranks_were_aborted(message: str, section: str):
    stopped = [result("aborted", rank, at=2.0, caused_by=0, message=message) for rank in (1, 2)]
    judged = verdict([result("failed", 0, at=1.0, message="x"), *stopped], PLAIN)
    [line] = [line for line in judged.text.splitlines() if line.startswith("ranks 1, 2")]
    assert line.startswith(section)


def test_rule_2_the_message_stays_short_however_many_peers_were_stopped():
    stopped = [result("aborted", rank, at=2.0, caused_by=0, message=f"{rank:0100}") for rank in range(1, 64)]
    judged = verdict([result("failed", 0, at=1.0), *stopped], PLAIN)
    assert len(judged.message) < 500
    assert judged.message.endswith("; and 60 more ranks)")


def test_rule_2_without_times_the_worst_leads_and_the_text_says_so():
    judged = verdict(ranks("failed", "crashed", "crashed"), PLAIN)
    assert (judged.kind, judged.leading) == (VerdictKind.ERROR, 1)
    assert "do not show which rank failed first" in judged.text


def test_rule_2_one_bad_rank_without_a_time_needs_no_caveat():
    assert "No times" not in verdict(ranks("passed", "failed"), PLAIN).text


def test_rule_2_where_only_some_have_times_no_order_is_claimed():
    found = primary_failure([result("failed", 0, at=1.0), result("crashed", 1)])
    assert found is not None
    assert found.result.rank == 1
    assert found.caveat


def test_rule_2_the_leading_rank_speaks_first_and_equal_peers_together():
    judged = verdict(
        [result("failed", 2, at=1.0, message="boom", text="trace of 2")]
        + [result("timed_out", rank, at=2.0, message="hung", consequence=True) for rank in (0, 1, 3)],
        PLAIN,
    )
    assert judged.text == (
        "ranks 0, 1, 3 timed out (secondary failure); rank 2 failed (primary failure)\n\n"
        "rank 2 failed: boom\ntrace of 2\n\n"
        "ranks 0, 1, 3 timed out: hung"
    )


def test_the_text_leaves_out_the_frames_of_tools():
    frame = '  File "/venv/lib/python3.11/site-packages/{}.py", line {} in {}'
    stack = ["Current thread (most recent call first):", '  File "/repo/test_x.py", line 8 in test_x']
    tools = [frame.format("_pytest/python", 187, "runtest"), frame.format("pluggy/_hooks", 5, "call")]
    text = verdict([result("timed_out", message="hangs", text="\n".join([*stack, *tools]))], PLAIN).text
    assert text.splitlines()[-3:] == [*stack, "  [... 2 frames of pytest, pluggy and allranks ...]"]


def test_rule_2_long_texts_of_peers_leave_the_leading_rank_its_room():
    lead = result("failed", 0, at=1.0, text="L" * 30_000)
    peers = [result("failed", rank, at=2.0, consequence=True, text=f"{rank}" * 50_000) for rank in range(1, 9)]
    judged = verdict([lead, *peers], PLAIN)
    assert "L" * 30_000 in judged.text
    assert len(judged.text) < 70_000


@pytest.mark.parametrize("others", ["passed", "xfailed", "xpassed"])
def test_rule_3_ranks_that_skip_beside_ranks_that_ran_disagree(others: str):
    judged = verdict(ranks("skipped", others), PLAIN)
    assert (judged.kind, judged.rule, judged.exit_code) == (
        VerdictKind.ERROR, VerdictRule.RANKS_DISAGREE, ExitCode.TESTS_FAILED,
    )  # fmt: skip


def test_rule_3_an_environment_skip_on_one_rank_alone_disagrees_under_either_policy():
    mixed = [result("skipped", 0, skip_kind=SkipKind.ENVIRONMENT), result("passed", 1)]
    assert verdict(mixed, PASSING).rule is VerdictRule.RANKS_DISAGREE


def test_rule_3_passes_beside_expected_failures_disagree():
    assert verdict(ranks("passed", "xfailed"), PLAIN).rule is VerdictRule.RANKS_DISAGREE


@pytest.mark.parametrize("peer", ["failed", "aborted"])
@pytest.mark.parametrize("first", ["skipped", "xfailed"])
def test_rule_3_a_rank_that_waited_for_one_that_skipped_or_failed_as_expected_disagrees(peer: str, first: str):
    waited = result(peer, 0, consequence=True, caused_by=1)
    assert verdict([waited, result(first, 1)], PLAIN).rule is VerdictRule.RANKS_DISAGREE


def test_rule_3_a_mix_that_the_policy_names_is_a_pass():
    setting = VerdictPolicy(mixed_skip=("t.py::*",))
    assert verdict(ranks("skipped", "passed"), setting).kind is VerdictKind.PASSED


def test_rule_3_a_policy_that_names_another_test_allows_nothing():
    setting = VerdictPolicy(mixed_skip=("u.py::*",))
    assert verdict(ranks("skipped", "passed"), setting).rule is VerdictRule.RANKS_DISAGREE


def test_rule_4_all_skipped_is_a_skip_that_did_not_execute():
    judged = verdict(ranks("skipped", "skipped", message="not today"), PLAIN)
    assert (judged.kind, judged.rule, judged.executed) == (VerdictKind.SKIPPED, VerdictRule.SKIPPED, False)
    assert (judged.message, judged.reason) == ("not today", "pytest.skip")


@pytest.mark.parametrize("mix", [("xfailed", "xfailed"), ("xfailed", "xpassed")])
def test_rule_4_expected_failures_are_skips_that_executed(mix: tuple[str, ...]):
    judged = verdict(ranks(*mix), PLAIN)
    assert (judged.kind, judged.reason, judged.executed) == (VerdictKind.SKIPPED, "pytest.xfail", True)


@pytest.mark.parametrize("kind", [SkipKind.ENVIRONMENT, SkipKind.HARDWARE])
def test_rule_4_an_environment_skip_is_a_pass_under_the_policy_and_keeps_reason_and_code(kind: SkipKind):
    judged = verdict(ranks("skipped", "skipped", skip_kind=kind, skip_code=76, message="no NCCL"), PASSING)
    assert (judged.kind, judged.is_skip_but_pass, judged.executed) == (VerdictKind.PASSED, True, False)
    assert (judged.message, judged.skip_code, judged.skip_kind) == ("no NCCL", 76, kind)


@pytest.mark.parametrize("kind", [SkipKind.PLAIN, None])
def test_rule_4_a_plain_skip_stays_a_skip_under_the_policy(kind: SkipKind | None):
    assert verdict(ranks("skipped", "skipped", skip_kind=kind), PASSING).kind is VerdictKind.SKIPPED


def test_rule_4_one_plain_skip_among_environment_skips_stays_a_skip():
    mixed = [result("skipped", 0, skip_kind=SkipKind.ENVIRONMENT), result("skipped", 1, skip_kind=SkipKind.PLAIN)]
    assert verdict(mixed, PASSING).kind is VerdictKind.SKIPPED


def test_rule_2_the_message_says_who_had_ended_the_test_long_before():
    late = result("failed", 1, at=70.0, message="Timed out waiting 60000ms")
    judged = verdict([result("passed", 0, at=10.0), late, result("passed", 2, at=9.0)], PLAIN)
    assert judged.message == "rank 1 failed: Timed out waiting 60000ms (ranks 0, 2 had finished the test 60 s earlier)"


@pytest.mark.parametrize(
    ("ended", "told"), [(9.5, ""), (9.0, " (rank 0 had finished the test 1 s earlier)"), (10.5, "")]
)
def test_rule_2_peers_that_ended_within_a_second_or_later_are_not_mentioned(ended, told):
    judged = verdict([result("passed", 0, at=ended), result("failed", 1, at=10.0, message="x")], PLAIN)
    assert judged.message == f"rank 1 failed: x{told}"


def test_rule_2_nobody_knows_who_ended_before_a_rank_without_a_time():
    judged = verdict([result("passed", 0, at=1.0), result("failed", 1, message="x"), result("passed", 2)], PLAIN)
    assert judged.message == "rank 1 failed: x"


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ("a", " (rank 1: a)"),
        ("aa", " (ranks 1, 2: a)"),
        ("aaaaa", " (ranks 1-5: a)"),
        ("aabaa", " (ranks 1, 2, 4, 5: a; rank 3: b)"),
        ("abcab", " (ranks 1, 4: a; ranks 2, 5: b; rank 3: c)"),
        ("abcd", " (rank 1: a; rank 2: b; rank 3: c; and 1 more rank)"),
        ("abcdede", " (rank 1: a; rank 2: b; rank 3: c; and 4 more ranks)"),
        ("a" * 99, " (ranks 1-99: a)"),
    ],
)
def test_rule_2_ranks_that_were_stopped_at_one_place_are_named_together(places: str, told: str):
    stopped = [result("aborted", rank, message=place, caused_by=0) for rank, place in enumerate(places, start=1)]
    assert verdict([result("failed", 0, message="x"), *stopped], PLAIN).message == f"rank 0 failed: x{told}"


def test_rule_3_a_rank_that_was_aborted_by_one_that_skipped_disagrees_with_it():
    waited = result("aborted", 1, caused_by=0, message="aborted by rank 0, which skipped")
    judged = verdict([result("skipped", 0, message="not here"), waited], PLAIN)
    assert (judged.kind, judged.rule) == (VerdictKind.ERROR, VerdictRule.RANKS_DISAGREE)
    assert "aborted by rank 0, which skipped" in judged.message


def test_rule_3_what_may_be_skipped_on_one_rank_may_not_hang_on_another():
    waited = result("aborted", 1, caused_by=0)
    judged = verdict([result("skipped", 0), waited], VerdictPolicy(mixed_skip=("*",)))
    assert judged.rule is VerdictRule.RANKS_DISAGREE


@pytest.mark.parametrize("setting", [VerdictPolicy(gpus=2), VerdictPolicy(skip="pass", gpus=2)])
def test_rule_4_a_hardware_skip_where_the_hardware_was_given_is_lost_coverage(setting: VerdictPolicy):
    judged = verdict(ranks("skipped", "skipped", skip_kind=SkipKind.HARDWARE, skip_code=77), setting)
    assert (judged.kind, judged.reason, judged.exit_code, judged.leading) == (
        VerdictKind.ERROR, "hardware skip", ExitCode.TESTS_FAILED, 0,
    )  # fmt: skip


def test_rule_4_a_skip_for_more_gpus_than_were_given_loses_nothing():
    judged = verdict(ranks("skipped", skip_kind=SkipKind.HARDWARE, skip_code=81), VerdictPolicy(gpus=2))
    assert judged.kind is VerdictKind.SKIPPED


@pytest.mark.parametrize("needed", [1, 2, 3, 5, 7, 8, 9, 16, 72])
@pytest.mark.parametrize(("given", "is_lost"), [(-1, False), (0, True), (1, True)])
def test_rule_4_the_number_that_was_asked_for_decides_whether_coverage_was_lost(needed: int, given: int, is_lost: bool):
    code, gpus = multi_gpu(needed), needed + given
    skipped = ranks("skipped", "skipped", skip_kind=SkipKind.HARDWARE, skip_code=code, gpus_needed=needed)
    judged = verdict(skipped, VerdictPolicy(gpus=gpus))
    assert judged.kind is (VerdictKind.ERROR if is_lost else VerdictKind.SKIPPED)


@pytest.mark.parametrize(
    ("code", "needed"), [(None, 1), (74, 1), (89, 1), (75, 1), (77, 2), (79, 2), (80, 3), (84, 7), (85, 8)]
)
def test_rule_4_a_result_without_a_number_asks_for_that_of_its_exit_code(code: int | None, needed: int):
    skipped = ranks("skipped", skip_kind=SkipKind.HARDWARE, skip_code=code)
    kinds = [verdict(skipped, VerdictPolicy(gpus=gpus)).kind for gpus in (needed - 1, needed)]
    assert kinds == [VerdictKind.SKIPPED, VerdictKind.ERROR]


def test_rule_4_an_environment_skip_where_gpus_were_given_loses_nothing():
    judged = verdict(ranks("skipped", skip_kind=SkipKind.ENVIRONMENT, skip_code=73), VerdictPolicy(gpus=2))
    assert judged.kind is VerdictKind.SKIPPED


@pytest.mark.parametrize("mix", [("passed", "passed"), ("xpassed", "xpassed"), ("passed", "xpassed")])
def test_rule_5_all_passed_is_a_pass(mix: tuple[str, ...]):
    judged = verdict(ranks(*mix), PLAIN)
    assert (judged.kind, judged.rule, judged.exit_code) == (VerdictKind.PASSED, VerdictRule.PASSED, ExitCode.OK)


@pytest.mark.parametrize(
    ("mix", "reason"), [(("xpassed", "xpassed"), "xpass"), (("passed", "xpassed"), ""), (("passed", "passed"), "")]
)
def test_rule_5_a_pass_has_a_reason_if_it_was_unexpected_on_every_rank(mix: tuple[str, ...], reason: str):
    assert verdict(ranks(*mix), PLAIN).reason == reason


@pytest.mark.parametrize(
    ("outcomes", "reason"), [(("missing", "passed"), "missing"), (("aborted", "passed"), "aborted"), ((), "missing")]
)
def test_rule_1_the_reason_says_what_is_unaccounted_for(outcomes: tuple[str, ...], reason: str):
    assert verdict(ranks(*outcomes), PLAIN).reason == reason


def test_rule_1_each_reason_why_ranks_are_missing_is_said_once():
    lost = [result("missing", rank, message=message) for rank, message in enumerate(["a lost node.", "damaged"] * 2)]
    assert verdict(lost, PLAIN).message == "ranks 0-3 are missing: a lost node; damaged."


def test_rule_4_each_reason_of_a_skip_is_said_once():
    said = [result("skipped", rank, message=message) for rank, message in enumerate(["", "no GPU", "old", "no GPU"])]
    assert verdict(said, PLAIN).message == "no GPU; old"


@pytest.mark.parametrize(
    ("message", "text", "section"),
    [
        ("boom", "trace", "rank 0 failed: boom\ntrace"),
        ("boom", "a trace", "rank 0 failed: boom\na trace"),
        ("boom", " boom\n", "rank 0 failed: boom"),
        ("boom", "", "rank 0 failed: boom"),
        ("", "trace", "rank 0 failed\ntrace"),
    ],
)
def test_a_rank_has_its_text_below_its_message_unless_it_says_the_same(message: str, text: str, section: str):
    assert (
        verdict([result("failed", message=message, text=text)], PLAIN).text
        == f"rank 0 failed (primary failure)\n\n{section}"
    )
