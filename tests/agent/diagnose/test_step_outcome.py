"""The outcomes of a step, from reports and exits."""

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.call_log import DEFAULT_GROUP, Calls, Count, GroupCalls, Wait
from allranks.agent.channel import Leaving, PhasesEnded, RankExit, RankReport, StepEnded
from allranks.agent.diagnose.step_outcome import MAX_PHASES, Step, StepOutcome, outcome_of_exit, outcome_of_report
from allranks.agent.output import Output
from allranks.protocol.outcomes import Outcome, Phase, SkipKind


def step_outcome(rank, outcome, **fields):
    return StepOutcome(rank=rank, outcome=Outcome(outcome), at=float(rank), **fields)


SECONDARY = step_outcome(0, "failed", is_secondary=True)


def step_of(*phases, rank=0, nodeid="t::x", **more):
    """Return a step in which a rank has reported these phases, as names or pairs of name and outcome."""
    ended = [Phase(when=when, outcome=Outcome(*outcome or ("passed",)), duration=0.0) for when, *outcome in phases]
    return Step(nodeid=nodeid, phases={rank: ended}, **more)


def test_an_outlier_is_primary_to_the_rank_that_its_call_killed():
    crash, failure = step_outcome(0, "crashed"), step_outcome(1, "failed", is_secondary=True, consequence=True)
    stopped = step_outcome(2, "aborted", message="aborted by rank 0", caused_by=0, consequence=True, text="stacks")
    step = Step(outcomes=[crash, failure, stopped, step_outcome(3, "passed")])
    step.promote_outliers([1])
    step.attribute_secondary_failures(None)
    assert (step.primary_failure.rank, step.primary_failure.consequence) == (1, False)
    assert [outcome.caused_by for outcome in step.outcomes] == [1, None, 1, None]
    assert step.outcomes[2].message == "aborted by rank 1"


def test_an_outlier_that_was_stopped_in_its_call_is_an_error():
    stopped = step_outcome(1, "aborted", message="aborted by rank 0", caused_by=0, consequence=True)
    step = Step(outcomes=[step_outcome(0, "crashed"), stopped])
    step.promote_outliers([1])
    primary = step.primary_failure
    assert (primary.rank, primary.outcome, primary.caused_by) == (1, Outcome.ERRORED, None)
    assert primary.message == "rank 1 waited in a call that its peers did not make"


def test_an_outlier_that_passed_is_not_primary():
    step = Step(outcomes=[step_outcome(0, "crashed"), step_outcome(1, "passed")])
    step.promote_outliers([1])
    assert step.primary_failure.rank == 0


def test_the_primary_failure_is_explained():
    step = Step(outcomes=[SECONDARY, step_outcome(1, "failed")])
    step.explain("rank 0 called nothing")
    step.explain("")
    assert [outcome.addition for outcome in step.outcomes] == ["", "the ranks' calls differ: rank 0 called nothing"]


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
    assert [outcome.rank for outcome in step.outcomes if outcome.outcome is Outcome.SKIPPED] == skipped
    assert all(outcome.message == subtests[outcome.rank] for outcome in step.outcomes if outcome.rank in skipped)


STEP_OUTCOMES = st.builds(
    step_outcome,
    st.integers(0, 3),
    st.sampled_from(["passed", "failed", "crashed", "skipped"]),
    is_secondary=st.booleans(),
)


@given(st.lists(STEP_OUTCOMES, max_size=6))
def test_a_secondary_failure_is_reported_first_only_if_all_are_secondary(noted):
    step = Step()
    for outcome in noted:
        step.add(outcome)
    failures = [outcome for outcome in step.outcomes if outcome.outcome.is_bad]
    primary = [outcome for outcome in failures if not outcome.is_secondary]
    assert step.primary_failure is next(iter([*primary, *failures]), None)


@pytest.mark.parametrize("outcome", ["failed", "crashed"])
def test_secondary_failures_are_consequences_of_the_cause(outcome):
    step = Step(outcomes=[SECONDARY, step_outcome(1, outcome)])
    step.attribute_secondary_failures(None)
    assert [(outcome.consequence, outcome.caused_by) for outcome in step.outcomes] == [(True, 1), (False, None)]


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
def test_the_current_phase_follows_the_last_reported_one(phases, under_way):
    assert step_of(*phases).current_phase(0) == under_way


def test_there_is_no_current_phase_without_a_test():
    assert step_of(SET_UP, nodeid="").current_phase(0) == ""


@pytest.mark.parametrize("phases", [[], [SET_UP]])
def test_an_announced_exit_may_skip_in_set_up_and_call(phases):
    assert step_of(*phases, leaving={0: Leaving(status=77)}).may_skip_by_exit(0, 77)


@pytest.mark.parametrize(
    "phases", [[SET_UP, CALL], [("setup", "errored")], [SET_UP, ("call", "failed")], [SET_UP, CALL, TEAR_DOWN]]
)
def test_an_announced_exit_does_not_skip_after_the_call(phases):
    assert not step_of(*phases, leaving={0: Leaving(status=77)}).may_skip_by_exit(0, 77)


@pytest.mark.parametrize("leaving", [{}, {0: Leaving(status=76)}, {1: Leaving(status=77)}])
def test_an_exit_that_was_not_announced_does_not_skip(leaving):
    assert not step_of(SET_UP, leaving=leaving).may_skip_by_exit(0, 77)


def test_an_exit_outside_of_a_test_does_not_skip():
    assert not step_of(nodeid="", leaving={0: Leaving(status=77)}).may_skip_by_exit(0, 77)


def test_an_announced_exit_is_a_skip_of_a_process_that_ended():
    step = step_of(SET_UP, leaving={0: Leaving(status=77)})
    outcome = outcome_of_exit(RankExit(rank=0, status=77, at=1.0), step)
    assert (outcome.outcome, outcome.skip_code) == (Outcome.SKIPPED, 77)
    assert (outcome.observed, outcome.process_ended) == (True, True)


@given(st.integers(-64, 255), st.lists(st.sampled_from([SET_UP, CALL, TEAR_DOWN, ("call", "failed")]), max_size=3))
def test_an_exit_is_a_failure_unless_it_is_an_announced_skip(status, phases):
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
def test_an_exit_after_a_failed_wait_may_be_secondary(status, wait, may_follow):
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
    ("secondary", "cause", "consequences"),
    [
        ({}, 0, [False, True, True]),
        ({0}, 1, [False, False, True]),
        ({0, 1}, 2, [False, False, False]),
        ({1, 2}, 0, [False, True, True]),
        ({0, 1, 2}, None, [False, False, False]),
    ],
)
def test_the_first_failure_that_is_not_secondary_is_the_cause(secondary, cause, consequences):
    step = Step(nodeid="t::x")
    for rank in range(3):
        note(step, failure(rank, 1.0 + rank, waits_for=FAILED_WAIT))
    step.classify_failures(lambda outcome: outcome.rank in secondary)
    assert (step.cause.rank if step.cause else None) == cause
    assert [outcome.consequence for outcome in step.outcomes] == consequences


OUTCOMES = st.sampled_from(["passed", "failed", "skipped", "errored", "xfailed"])


@given(st.lists(st.tuples(st.sampled_from(["setup", "call", "teardown"]), OUTCOMES), min_size=1, max_size=5))
def test_a_failed_phase_decides_whatever_the_last_report_says(phases):
    step = Step(nodeid="t::x")
    for phase in step_of(*phases).phases[0]:
        step.store(0, PhasesEnded(nodeid="t::x", phases=(phase,)))
    last = passed(0, 1.0)
    outcome = outcome_of_report(last, last.message, step)
    assert outcome.is_final
    assert outcome.outcome.is_bad is any(Outcome(name).is_bad for _, name in phases)


def test_kept_phases_are_limited_and_include_the_first_failure():
    step = Step(nodeid="t::x")
    for outcome in [Outcome.PASSED] * 1000 + [Outcome.FAILED] * 1000:
        step.store(0, PhasesEnded(nodeid="t::x", phases=(Phase(when="call", outcome=outcome, duration=0.0),)))
    assert len(step.phases[0]) == MAX_PHASES + 1
    last = passed(0, 1.0)
    assert outcome_of_report(last, last.message, step).outcome is Outcome.FAILED


def death(rank, at, number=signal.SIGTERM, **how):
    return RankExit(rank=rank, status=-number, at=at, **how)


LOST = {"lost": "the agent of node 1 received a request to stop", "was_told_to_stop": True}


@pytest.mark.parametrize(
    ("events", "outcomes", "primary"),
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
def test_only_ranks_that_ended_with_the_job_are_aborted(events, outcomes, primary):
    step = Step(nodeid="t::x")
    for event in events:
        note(step, event)
    step.abort_terminated_ranks("the job was ended from outside")
    assert [str(outcome.outcome) for outcome in sorted(step.outcomes, key=lambda outcome: outcome.rank)] == outcomes
    failures = [
        outcome for outcome in step.outcomes if outcome.outcome.is_bad and outcome.outcome is not Outcome.ABORTED
    ]
    assert (step.cause.rank if step.cause else None) == primary
    assert [outcome.rank for outcome in failures if not outcome.consequence] == ([] if primary is None else [primary])
    assert {outcome.message for outcome in step.outcomes if outcome.outcome is Outcome.ABORTED} <= {
        "the job was ended from outside"
    }


def reports(*ended, **fields):
    """Return a step in which the ranks passed, with these last messages."""
    return Step(outcomes=[step_outcome(rank, "passed", report=report, **fields) for rank, report in enumerate(ended)])


def test_state_is_restored_if_no_rank_left_it():
    step = reports(StepEnded(restored=("cwd", "seed")), StepEnded(restored=("env",), left=("seed",)))
    assert (step.restored, step.not_restored) == ({"cwd", "env"}, {"seed"})


def test_failed_children_are_listed_with_their_ranks():
    one, two = "a child exited with code 1", "a child was killed"
    step = reports(*(StepEnded(unchecked_children=failures) for failures in [(), (two, one), (one,)]))
    assert step.unchecked_children == {two: [1], one: [1, 2]}


PASSED, EARLY_SKIP = StepEnded(), StepEnded(early_skip=True)


@pytest.mark.parametrize(
    ("outcomes", "ended", "failures", "is_clean"),
    [
        (["passed", "passed"], [PASSED, PASSED], 0, True),
        (["skipped", "skipped"], [EARLY_SKIP, EARLY_SKIP], 0, True),
        (["skipped", "skipped"], [EARLY_SKIP, PASSED], 0, False),
        (["passed", "skipped"], [PASSED, EARLY_SKIP], 0, False),
        (["passed", "failed"], [PASSED, PASSED], 0, False),
        (["passed", "passed"], [PASSED, PASSED], 1, False),
        (["passed", "passed"], [PASSED, StepEnded(left=("env",))], 0, False),
        (["passed", "passed"], [PASSED, StepEnded(has_exited=True)], 0, False),
    ],
)
def test_a_gang_is_kept_only_if_all_ranks_agree_and_leave_nothing(outcomes, ended, failures, is_clean):
    step = Step(
        outcomes=[
            step_outcome(rank, outcome, report=report, calls=Calls(failures=failures) if rank else None)
            for rank, (outcome, report) in enumerate(zip(outcomes, ended, strict=True))
        ]
    )
    assert step.is_clean is is_clean
    assert step.has_failed_calls is (failures > 0)


def test_calls_that_failed_are_not_the_reason_for_new_ranks_if_the_test_failed():
    step = Step(outcomes=[step_outcome(0, "passed"), step_outcome(1, "failed", calls=Calls(failures=1))])
    assert not step.has_failed_calls


def calls(number, **more):
    counts = (Count("barrier", number),) if number else ()
    return Calls(groups=(GroupCalls(name=DEFAULT_GROUP, members=(0, 1), counts=counts),), **more)


@pytest.mark.parametrize(
    ("outcome", "report", "failures", "expected"),
    [
        ("passed", PASSED, 0, ["passed", "errored"]),
        ("passed", PASSED, 1, ["passed", "passed"]),
        ("skipped", EARLY_SKIP, 0, ["skipped", "skipped"]),
    ],
)
def test_an_unmatched_call_is_an_error_unless_a_call_failed_or_a_rank_skipped(outcome, report, failures, expected):
    step = Step(
        outcomes=[
            step_outcome(rank, outcome, report=report, calls=calls(number, failures=failures))
            for rank, number in enumerate((2, 1))
        ]
    )
    mismatch = step.compare_calls()
    assert mismatch is step.mismatch
    assert mismatch.message == "rank 0 called barrier twice in the default group, rank 1 once"
    assert [str(outcome.outcome) for outcome in step.outcomes] == expected
    changed = [outcome for outcome in step.outcomes if outcome.outcome is Outcome.ERRORED]
    assert all((outcome.message, outcome.observed) == (mismatch.message, True) for outcome in changed)


def test_the_calls_of_ranks_that_disagree_are_not_compared():
    step = Step(outcomes=[step_outcome(0, "passed", calls=calls(1)), step_outcome(1, "failed", calls=calls(0))])
    assert (step.compare_calls(), step.mismatch) == (None, None)


@pytest.mark.parametrize(
    ("peer", "described"),
    [
        ({"outcome": "passed", "calls": calls(0)}, True),
        ({"outcome": "crashed", "calls": calls(0), "process_ended": True}, True),
        ({"outcome": "failed", "calls": calls(0)}, False),
        ({"outcome": "passed"}, False),
    ],
)
def test_an_unmatched_call_is_described_if_all_others_passed_or_died(peer, described):
    step = Step(outcomes=[step_outcome(0, "passed", calls=calls(1)), step_outcome(1, **peer)])
    assert bool(step.describe_unmatched_call()) is described


def test_the_last_termination_is_known():
    deaths = [death(0, 1.0), death(1, 3.0), death(2, 4.0, signal.SIGKILL), death(3, 2.0)]
    step = Step()
    assert step.last_termination is None
    for event in deaths:
        note(step, event)
    assert step.last_termination == 3.0


def test_the_first_failure_is_named():
    step = Step(outcomes=[step_outcome(0, "skipped"), step_outcome(1, "timed_out"), step_outcome(2, "failed")])
    assert (step.first_failure, step.has_skipped, step.first_skip.rank) == ("rank 1 timed out", True, 0)
    assert not Step(outcomes=step.outcomes[1:]).has_skipped


TIMEOUT = f"""\
{12 * "+"} Timeout {12 * "+"}
{12 * "~"} Stack of Thread-1 (2) {12 * "~"}
  File "/suite/helper.py", line 2, in work
    wait()
{12 * "~"} Stack of MainThread (1) {12 * "~"}
  File "/suite/test_x.py", line 3, in test_x
    help()
  File "/suite/helper.py", line 9, in help
    wait()
  File "/x/site-packages/torch/distributed/c10d.py", line 9, in wait
    work.wait()
"""


def test_an_exit_by_pytest_timeout_is_a_time_out():
    exits = RankExit(rank=0, status=1, at=1.0, output=Output(stderr=TIMEOUT))
    outcome = outcome_of_exit(exits, step_of(SET_UP))
    assert outcome.outcome is Outcome.TIMED_OUT
    assert outcome.message == "ended by pytest-timeout; it was in /suite/helper.py:9 in help"
    assert outcome_of_exit(replace(exits, status=2), step_of(SET_UP)).outcome is Outcome.CRASHED


@pytest.mark.parametrize(
    ("earlier", "addition"),
    [
        (passed(0, 0.5), ", after it had ended its own part of the test"),
        (passed(1, 0.5), ""),
        (failure(0, 0.5), ""),
    ],
)
def test_the_message_of_a_crash_says_whether_its_rank_had_ended_the_test(earlier, addition):
    step = step_of(SET_UP)
    note(step, earlier)
    outcome = outcome_of_exit(death(0, 1.0, signal.SIGSEGV), step)
    assert outcome.message == f"rank 0 was killed by SIGSEGV{addition}"
