"""Who is to blame for a step that did not end, and what that makes of the others."""

import signal
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.call_log import LastCall, Wait
from allranks.agent.channel import Leaving, PhasesEnded, RankExit, RankHang, RankReport, StepEnded
from allranks.agent.diagnose.primary_failure import FailureAnalysis, describe_conflicting_call, stopped_outcomes
from allranks.agent.diagnose.step_outcome import MAX_PHASES, Step, StepOutcome, outcome_of_exit, outcome_of_report
from allranks.agent.stacks import Stacks
from allranks.protocol.outcomes import Outcome, Phase, SkipKind

HEAD = "Current thread 0x1 (most recent call first):\n"
WAITING = '  File "/x/site-packages/torch/distributed/c10d.py", line 9 in wait\n'
IN_A_COLLECTIVE = RankHang(stacks=Stacks(f'{HEAD}{WAITING}  File "/home/me/test_a.py", line 5 in test_a\n'))
ELSEWHERE = RankHang(stacks=Stacks(f'{HEAD}  File "/home/me/test_a.py", line 7 in loop\n'))


def step_outcome(rank, outcome, **fields):
    return StepOutcome(rank=rank, outcome=Outcome(outcome), at=float(rank), **fields)


SECONDARY = step_outcome(0, "failed", is_secondary=True)


def step_of(*phases, rank=0, nodeid="t::x", **more):
    """A step in which a rank has ended these phases, by name, or by name and outcome."""
    ended = [Phase(when=when, outcome=Outcome(*outcome or ("passed",)), duration=0.0) for when, *outcome in phases]
    return Step(nodeid=nodeid, phases={rank: ended}, **more)


def stop_ranks(earlier, hangs, first_skip=None, phases=(), calls=MappingProxyType({})):
    step = Step(nodeid="t::x" if phases else "", outcomes=list(earlier))
    for rank, whens in dict(phases).items():
        step.phases.update(step_of(*((when,) for when in whens), rank=rank).phases)
    late = FailureAnalysis(step, hangs, calls).late_ranks(has_failed=step.has_failed)
    return stopped_outcomes(step, hangs, late, reason="not finished after 9 s", first_skip=first_skip)


def outcomes(settled):
    return {each.rank: (each.outcome.value, each.caused_by) for each in settled}


def test_who_is_out_after_a_cause_is_aborted_by_it():
    settled = stop_ranks([step_outcome(2, "failed")], {0: ELSEWHERE, 1: IN_A_COLLECTIVE})
    assert outcomes(settled) == {0: ("aborted", 2), 1: ("aborted", 2)}


def test_after_a_symptom_the_rank_that_did_not_come_is_timed_out_and_who_waits_is_aborted_by_it():
    settled = stop_ranks([SECONDARY], {1: IN_A_COLLECTIVE, 2: ELSEWHERE})
    assert outcomes(settled) == {2: ("timed_out", None), 1: ("aborted", 2)}
    assert settled[0].message == (
        "ranks 0 and 1 waited for it; not finished after 9 s; it was in /home/me/test_a.py:7 in loop"
    )
    assert settled[1].message == "aborted by rank 2 while waiting at /home/me/test_a.py:5 in test_a"


@pytest.mark.parametrize(
    ("earlier", "hangs", "message"),
    [
        ([0], {1: ELSEWHERE}, "rank 0 waited for it; not finished after 9 s"),
        ([0, 2], {1: ELSEWHERE}, "ranks 0 and 2 waited for it; not finished after 9 s"),
        ([3], {0: IN_A_COLLECTIVE, 1: ELSEWHERE, 2: IN_A_COLLECTIVE}, "ranks 0, 2 and 3 waited for it; no end"),
        ([0, 1, 2], {3: ELSEWHERE, 4: IN_A_COLLECTIVE}, "ranks 0-2 and 4 waited for it; not finished after 9 s"),
        ([0], {1: ELSEWHERE, 2: ELSEWHERE}, "rank 0 waited for it; not finished after 9 s"),
        ([], {0: IN_A_COLLECTIVE, 1: ELSEWHERE}, "not finished after 9 s"),
    ],
)
def test_the_message_names_who_waited_and_the_limit(earlier, hangs, message):
    symptoms = [step_outcome(rank, "failed", is_secondary=True) for rank in earlier]
    blamed = [each for each in stop_ranks(symptoms, hangs) if each.outcome is Outcome.TIMED_OUT]
    assert blamed
    assert all(each.message.startswith(message) for each in blamed)


@pytest.mark.parametrize(
    ("first", "hang", "message"),
    [
        ("failed", IN_A_COLLECTIVE, "aborted by rank 0 while waiting at /home/me/test_a.py:5 in test_a"),
        ("failed", ELSEWHERE, "aborted by rank 0 at /home/me/test_a.py:7 in loop"),
        ("failed", RankHang(), "aborted by rank 0"),
        (
            "skipped",
            IN_A_COLLECTIVE,
            "aborted by rank 0, which skipped, while waiting at /home/me/test_a.py:5 in test_a",
        ),
        ("skipped", RankHang(), "aborted by rank 0, which skipped"),
    ],
)
def test_an_aborted_rank_says_where_it_was(first, hang, message):
    outcome = step_outcome(0, first)
    [aborted] = stop_ranks([outcome], {1: hang}, first_skip=outcome if first == "skipped" else None)
    assert aborted.message == message


REPORTING = RankHang(stacks=Stacks(f'{HEAD}  File "/x/site-packages/_pytest/_code/code.py", line 9 in repr_excinfo\n'))


@pytest.mark.parametrize("hang", [RankHang(), REPORTING])
def test_a_rank_of_unknown_place_is_to_blame_unless_it_has_called_what_its_peers_have(hang):
    unknown = {1: hang}
    assert outcomes(stop_ranks([SECONDARY], unknown)) == {1: ("timed_out", None)}
    assert outcomes(stop_ranks([SECONDARY], unknown, calls={0: all_reduce(2), 1: all_reduce(1)})) == {
        1: ("timed_out", None)
    }
    assert outcomes(stop_ranks([SECONDARY], unknown, calls={0: all_reduce(2), 1: all_reduce(2)})) == {1: ("aborted", 0)}


def test_a_rank_without_a_stack_that_called_in_another_group_is_to_blame():
    calls = {0: all_reduce(2), 1: all_reduce(1, group="7"), 2: all_reduce(2)}
    assert outcomes(stop_ranks([SECONDARY], {1: RankHang()}, calls=calls)) == {1: ("timed_out", None)}


@pytest.mark.parametrize("earlier", [[SECONDARY], []])
def test_who_waits_for_a_key_while_others_wait_for_it_in_a_collective_is_to_blame(earlier):
    calls = {0: all_reduce(1), 1: [], 2: all_reduce(1)}
    settled = stop_ranks(earlier, {1: IN_A_COLLECTIVE, 2: IN_A_COLLECTIVE}, calls=calls)
    assert outcomes(settled) == {1: ("timed_out", None), 2: ("aborted", 1)}


def test_of_two_ranks_that_wait_the_one_that_waits_for_a_key_is_to_blame():
    calls = {0: all_reduce(1), 1: []}
    settled = stop_ranks([], {0: IN_A_COLLECTIVE, 1: IN_A_COLLECTIVE}, calls=calls)
    assert outcomes(settled) == {1: ("timed_out", None), 0: ("aborted", 1)}


def test_where_all_wait_in_collectives_the_symptom_leads():
    settled = stop_ranks([SECONDARY], {1: IN_A_COLLECTIVE, 2: IN_A_COLLECTIVE})
    assert outcomes(settled) == {1: ("aborted", 0), 2: ("aborted", 0)}


def test_at_the_limit_who_waits_in_a_collective_is_a_victim_of_who_does_not():
    settled = stop_ranks([], {0: IN_A_COLLECTIVE, 1: ELSEWHERE})
    assert outcomes(settled) == {1: ("timed_out", None), 0: ("aborted", 1)}


def test_at_the_limit_all_are_timed_out_where_all_wait():
    settled = stop_ranks([], {0: IN_A_COLLECTIVE, 1: IN_A_COLLECTIVE})
    assert {each.outcome for each in settled} == {Outcome.TIMED_OUT}


def all_reduce(number, shape="4", group="default"):
    return [LastCall(group, number, "all_reduce", None, "float32", shape, order=number)]


def test_of_ranks_that_do_something_else_those_are_to_blame_that_are_behind():
    calls = {0: all_reduce(3), 1: all_reduce(2), 2: all_reduce(3)}
    settled = stop_ranks([], {0: ELSEWHERE, 1: ELSEWHERE, 2: IN_A_COLLECTIVE}, calls=calls)
    assert outcomes(settled) == {1: ("timed_out", None), 0: ("aborted", 1), 2: ("aborted", 1)}


@pytest.mark.parametrize(("wait", "expected"), [(Wait(1), ("aborted", 1)), (None, ("timed_out", None))])
def test_who_polls_for_a_collective_that_a_peer_has_not_called_is_no_cause(wait, expected):
    hangs = {0: replace(ELSEWHERE, waits_for=wait), 1: ELSEWHERE}
    assert outcomes(stop_ranks([], hangs, calls={0: all_reduce(1), 1: []}))[0] == expected


def test_who_waits_in_another_call_than_most_is_to_blame():
    calls = {0: all_reduce(12), 1: [LastCall("default", 12, "broadcast", None, "float32", "4", 12)], 2: all_reduce(12)}
    settled = stop_ranks([], dict.fromkeys(range(3), IN_A_COLLECTIVE), calls=calls)
    assert outcomes(settled) == {1: ("timed_out", None), 0: ("aborted", 1), 2: ("aborted", 1)}


def test_where_no_call_has_a_majority_all_are_to_blame():
    calls = {0: all_reduce(12), 1: [LastCall("default", 12, "broadcast", None, "float32", "4", 12)]}
    settled = stop_ranks([], dict.fromkeys(range(2), IN_A_COLLECTIVE), calls=calls)
    assert {each.outcome for each in settled} == {Outcome.TIMED_OUT}


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ({0: all_reduce(3), 1: all_reduce(3)}, ""),
        ({0: all_reduce(3), 1: all_reduce(2, "5")}, ""),
        ({0: all_reduce(3), 1: all_reduce(3, "5", group="7")}, ""),
        ({0: [LastCall("default", 3, "send", 1)], 1: [LastCall("default", 3, "recv", 0)]}, ""),
        (
            {
                0: [LastCall("default", 3, "all_to_all", shape="1")],
                1: [LastCall("default", 3, "all_to_all", shape="2")],
            },
            "",
        ),
        (
            {0: all_reduce(3), 1: [LastCall("default", 3, "broadcast")], 2: all_reduce(3)},
            "ranks 0 and 2 called all_reduce #3, rank 1 broadcast #3",
        ),
        (
            {0: all_reduce(3, "4x2", "7"), 1: all_reduce(3, "", "7")},
            "rank 0 called all_reduce #3 of 4x2 float32, rank 1 all_reduce #3 of no shape float32 of group 7",
        ),
        (
            {rank: [LastCall("default", 3, "reduce", rank // 2, "int8", "2")] for rank in range(3)},
            "ranks 0 and 1 called reduce #3 of 2 int8 with root 0, rank 2 reduce #3 of 2 int8 with root 1",
        ),
    ],
)
def test_a_collective_that_is_not_the_same_on_all_ranks_is_named(calls, words):
    assert describe_conflicting_call(calls) == words


def test_a_stray_leads_before_the_rank_that_its_call_has_killed():
    crash, symptom = step_outcome(0, "crashed"), step_outcome(1, "failed", is_secondary=True, consequence=True)
    stopped = step_outcome(2, "aborted", message="aborted by rank 0", caused_by=0, consequence=True, text="stacks")
    step = Step(outcomes=[crash, symptom, stopped, step_outcome(3, "passed")])
    step.promote_outliers([1])
    step.attribute_secondary_failures(None)
    assert (step.primary_failure.rank, step.primary_failure.consequence) == (1, False)
    assert [each.caused_by for each in step.outcomes] == [1, None, 1, None]
    assert step.outcomes[2].message == "aborted by rank 1"


def test_a_stray_that_was_stopped_in_its_call_is_an_error():
    stopped = step_outcome(1, "aborted", message="aborted by rank 0", caused_by=0, consequence=True)
    step = Step(outcomes=[step_outcome(0, "crashed"), stopped])
    step.promote_outliers([1])
    assert (step.primary_failure.rank, step.primary_failure.outcome, step.primary_failure.caused_by) == (
        1,
        Outcome.ERRORED,
        None,
    )
    assert step.primary_failure.message == "rank 1 waited in a call that its peers did not make"


def test_a_stray_that_has_passed_leads_nothing():
    step = Step(outcomes=[step_outcome(0, "crashed"), step_outcome(1, "passed")])
    step.promote_outliers([1])
    assert step.primary_failure.rank == 0


def test_what_the_supervisor_knows_is_said_by_the_outcome_that_leads():
    step = Step(outcomes=[SECONDARY, step_outcome(1, "failed")])
    step.explain("rank 0 called nothing")
    step.explain("")
    assert [each.addition for each in step.outcomes] == ["", "the ranks' calls differ: rank 0 called nothing"]


def test_a_stopped_rank_says_so():
    [settled] = stop_ranks([], {1: RankHang(held="it is stopped (SIGSTOP)")}, phases={1: ["setup"]})
    assert settled.message == "not finished after 9 s, in the call of this test; it is stopped (SIGSTOP)"


def test_the_peers_of_a_rank_that_skipped_are_aborted_by_it_even_after_symptoms():
    first_skip = step_outcome(3, "skipped")
    settled = stop_ranks([SECONDARY, first_skip], {1: ELSEWHERE}, first_skip)
    assert outcomes(settled) == {1: ("aborted", 3)}


@pytest.mark.parametrize(("hang", "expected"), [(IN_A_COLLECTIVE, ("aborted", 3)), (ELSEWHERE, ("timed_out", None))])
def test_the_peers_of_a_rank_that_failed_as_expected_are_aborted_by_it_where_they_wait(hang, expected):
    first_skip = step_outcome(3, "xfailed")
    assert outcomes(stop_ranks([first_skip], {1: hang}, first_skip)) == {1: expected}


@pytest.mark.parametrize(
    ("subtests", "skipped"),
    [
        (["", "", ""], []),
        (["", "one: on 1", ""], [1]),
        (["one: on 0", "", "one: on 2"], [0, 2]),
        (["one: on 0", "one: on 1", "one: on 2"], []),
        (["one: on 0", "two: on 1", "one: on 2"], [1]),
    ],
)
def test_a_rank_that_skipped_subtests_which_another_ran_counts_as_skipped(subtests, skipped):
    step = Step(
        outcomes=[
            step_outcome(rank, "passed", report=StepEnded(skipped_subtests=text)) for rank, text in enumerate(subtests)
        ]
    )
    step.compare_subtests()
    assert [each.rank for each in step.outcomes if each.outcome is Outcome.SKIPPED] == skipped
    assert all(each.message == subtests[each.rank] for each in step.outcomes if each.rank in skipped)


STEP_OUTCOMES = st.builds(
    step_outcome,
    st.integers(0, 3),
    st.sampled_from(["passed", "failed", "crashed", "skipped"]),
    is_secondary=st.booleans(),
)


@given(st.lists(STEP_OUTCOMES, max_size=4), st.sets(st.integers(4, 7), min_size=1), st.data())
def test_every_rank_that_is_out_gets_one_bad_outcome_and_no_abort_is_without_a_cause(earlier, out, data):
    hangs = {rank: data.draw(st.sampled_from([IN_A_COLLECTIVE, ELSEWHERE, RankHang()])) for rank in out}
    settled = stop_ranks(earlier, hangs)
    assert sorted(each.rank for each in settled) == sorted(out)
    for each in settled:
        assert each.outcome.is_bad
        assert (each.outcome is Outcome.ABORTED) == (each.caused_by is not None)


@given(st.lists(STEP_OUTCOMES, max_size=6))
def test_a_symptom_leads_only_where_there_is_nothing_else(noted):
    step = Step()
    for each in noted:
        step.add(each)
    own = [each for each in step.outcomes if each.outcome.is_bad and not each.is_secondary]
    assert step.primary_failure is (
        own[0] if own else next((each for each in step.outcomes if each.outcome.is_bad), None)
    )


@pytest.mark.parametrize("outcome", ["failed", "crashed"])
def test_at_the_end_of_a_step_symptoms_are_consequences_of_the_cause(outcome):
    step = Step(outcomes=[SECONDARY, step_outcome(1, outcome)])
    step.attribute_secondary_failures(None)
    assert [(each.consequence, each.caused_by) for each in step.outcomes] == [(True, 1), (False, None)]


SET_UP, CALL, TEAR_DOWN = ("setup",), ("call",), ("teardown",)


@pytest.mark.parametrize(
    ("phases", "under_way"),
    [
        ([], "set-up"),
        ([SET_UP], "call"),
        ([("setup", "errored")], "tear-down"),
        ([("setup", "skipped")], "tear-down"),
        ([SET_UP, CALL], "tear-down"),
        ([SET_UP, ("call", "failed")], "tear-down"),
        ([SET_UP, CALL, TEAR_DOWN], ""),
    ],
)
def test_the_current_phase_is_the_one_behind_the_last_that_ended(phases, under_way):
    assert step_of(*phases).current_phase(0) == under_way


def test_without_a_test_no_phase_is_under_way():
    assert step_of(SET_UP, nodeid="").current_phase(0) == ""


@pytest.mark.parametrize("phases", [[], [SET_UP]])
def test_an_exit_that_the_main_thread_has_announced_may_skip_in_set_up_and_call(phases):
    assert step_of(*phases, leaving={0: Leaving(status=77)}).may_skip_by_exit(0, 77)


@pytest.mark.parametrize(
    "phases", [[SET_UP, CALL], [("setup", "errored")], [SET_UP, ("call", "failed")], [SET_UP, CALL, TEAR_DOWN]]
)
def test_an_exit_never_skips_after_that(phases):
    assert not step_of(*phases, leaving={0: Leaving(status=77)}).may_skip_by_exit(0, 77)


@pytest.mark.parametrize("leaving", [{}, {0: Leaving(status=76)}, {1: Leaving(status=77)}])
def test_an_exit_that_was_not_announced_like_that_never_skips(leaving):
    assert not step_of(SET_UP, leaving=leaving).may_skip_by_exit(0, 77)


def test_outside_of_a_test_no_exit_skips():
    assert not step_of(nodeid="", leaving={0: Leaving(status=77)}).may_skip_by_exit(0, 77)


@given(st.integers(-64, 255), st.lists(st.sampled_from([SET_UP, CALL, TEAR_DOWN, ("call", "failed")]), max_size=3))
def test_an_end_is_bad_unless_it_is_a_skip_that_the_test_has_chosen(status, phases):
    step = step_of(*phases, leaving={0: Leaving(status=status)})
    outcome = outcome_of_exit(RankExit(rank=0, status=status, at=1.0), step)
    is_skip = 72 <= status <= 89 and outcome.skip_code == status and step.may_skip_by_exit(0, status)
    assert outcome.outcome.is_bad is not is_skip
    assert (outcome.skip_kind in (SkipKind.ENVIRONMENT, SkipKind.HARDWARE)) is is_skip


FAILED_WAIT, OPEN_WAIT = Wait(3, 2.0), Wait(3)


@pytest.mark.parametrize(
    ("status", "wait", "may_follow"),
    [
        (5, FAILED_WAIT, True),
        (0, FAILED_WAIT, True),
        (5, OPEN_WAIT, False),
        (-6, FAILED_WAIT, True),
        (-6, OPEN_WAIT, True),
        (-11, FAILED_WAIT, False),
        (-9, OPEN_WAIT, False),
        (5, None, False),
        (-6, None, False),
        (None, FAILED_WAIT, False),
    ],
)
def test_a_rank_that_leaves_after_a_failed_wait_or_aborts_in_one_may_follow_its_peers(status, wait, may_follow):
    rank_exit = RankExit(rank=0, status=status, at=1.0, waits_for=wait)
    assert outcome_of_exit(rank_exit, step_of(SET_UP)).is_secondary is may_follow


def failure(rank, at, **more):
    phase = Phase(when="call", outcome=Outcome.FAILED, duration=0.0, message="broken")
    return RankReport(rank=rank, message=PhasesEnded(nodeid="t::x", phases=(phase,), **more), at=at)


def passed(rank, at):
    return RankReport(rank=rank, message=StepEnded(nodeid="t::x"), at=at)


def note(step, event):
    """Add an event to a step, as the gang does."""
    if isinstance(event, RankReport):
        step.store(event.rank, event.message)
        step.add(outcome_of_report(event, event.message, step))
    else:
        step.add(outcome_of_exit(event, step))


@pytest.mark.parametrize(
    ("follow", "leading", "consequences"),
    [
        ({}, 0, [False, True, True]),
        ({0}, 1, [False, False, True]),
        ({0, 1}, 2, [False, False, False]),
        ({1, 2}, 0, [False, True, True]),
        ({0, 1, 2}, None, [False, False, False]),
    ],
)
def test_of_ranks_that_waited_the_first_whose_failure_follows_from_no_other_leads(follow, leading, consequences):
    step = Step(nodeid="t::x")
    for rank in range(3):
        note(step, failure(rank, 1.0 + rank, waits_for=FAILED_WAIT))
    step.classify_failures(lambda each: each.rank in follow)
    assert (step.cause.rank if step.cause else None) == leading
    assert [each.consequence for each in step.outcomes] == consequences


OUTCOMES = st.sampled_from(["passed", "failed", "skipped", "errored", "xfailed"])


@given(st.lists(st.tuples(st.sampled_from(["setup", "call", "teardown"]), OUTCOMES), min_size=1, max_size=5))
def test_a_bad_phase_makes_a_rank_bad_whatever_its_last_report_says(phases):
    step = Step(nodeid="t::x")
    for phase in step_of(*phases).phases[0]:
        step.store(0, PhasesEnded(nodeid="t::x", phases=(phase,)))
    last = passed(0, 1.0)
    outcome = outcome_of_report(last, last.message, step)
    assert outcome.is_final
    assert outcome.outcome.is_bad is any(Outcome(each).is_bad for _, each in phases)


def test_phases_without_end_are_bounded_and_the_first_bad_one_is_kept():
    step = Step(nodeid="t::x")
    for outcome in [Outcome.PASSED] * 1000 + [Outcome.FAILED] * 1000:
        step.store(0, PhasesEnded(nodeid="t::x", phases=(Phase(when="call", outcome=outcome, duration=0.0),)))
    assert len(step.phases[0]) == MAX_PHASES + 1
    last = passed(0, 1.0)
    assert outcome_of_report(last, last.message, step).outcome is Outcome.FAILED


def death(rank, at, number=signal.SIGTERM, **how):
    return RankExit(rank=rank, status=-number, at=at, **how)


LOST = {"lost": "the agent of node 1 was told to stop", "was_told_to_stop": True}


@pytest.mark.parametrize(
    ("events", "outcomes", "leader"),
    [
        ([death(0, 1.0), death(1, 1.1)], ["aborted", "aborted"], None),
        ([death(1, 1.0), failure(0, 1.1, is_symptom=True)], ["aborted", "aborted"], None),
        ([failure(0, 1.0, is_symptom=True), death(1, 1.1)], ["aborted", "aborted"], None),
        ([passed(0, 0.5), death(1, 1.0)], ["passed", "aborted"], None),
        ([failure(0, 0.5), death(1, 1.0)], ["failed", "aborted"], 0),
        ([death(1, 1.0), failure(0, 1.1)], ["failed", "aborted"], 0),
        ([death(0, 0.5, signal.SIGSEGV), death(1, 1.0)], ["crashed", "aborted"], 0),
        ([death(1, 0.5), death(0, 1.0, signal.SIGKILL)], ["crashed", "aborted"], 0),
        ([death(2, 0.5), death(0, 1.0, signal.SIGABRT), failure(1, 1.1)], ["crashed", "failed", "aborted"], 0),
        ([death(0, 0.5, signal.SIGSEGV), failure(1, 0.6, is_symptom=True), death(2, 1.0)],
         ["crashed", "failed", "aborted"], 0),
        ([RankExit(rank=1, status=None, at=1.0, **LOST), death(0, 1.1)], ["aborted", "aborted"], None),
        ([failure(0, 0.9), RankExit(rank=1, status=None, at=1.0, **LOST)], ["failed", "aborted"], 0),
        ([death(1, 1.0, signal.SIGINT)], ["crashed"], 1),
    ],
)  # fmt: skip
def test_ranks_that_ended_with_the_job_are_aborted_and_no_others(events, outcomes, leader):
    step = Step(nodeid="t::x")
    for event in events:
        note(step, event)
    step.abort_terminated_ranks("the job was ended from outside")
    assert [str(each.outcome) for each in sorted(step.outcomes, key=lambda each: each.rank)] == outcomes
    leading = [each for each in step.outcomes if each.outcome.is_bad and each.outcome is not Outcome.ABORTED]
    assert (step.cause.rank if step.cause else None) == leader
    assert [each.rank for each in leading if not each.consequence] == ([] if leader is None else [leader])
    assert {each.message for each in step.outcomes if each.outcome is Outcome.ABORTED} <= {
        "the job was ended from outside"
    }
