"""Who is to blame for a step that did not end, and what that makes of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.harness.gangs.arrival import Arrival, Step, given_up
from allranks.harness.gangs.crew import Stuck
from allranks.harness.outcome import Outcome

HEAD = "Current thread 0x1 (most recent call first):\n"
WAITING = '  File "/x/site-packages/torch/distributed/c10d.py", line 9 in wait\n'
IN_A_COLLECTIVE = Stuck(stacks=f'{HEAD}{WAITING}  File "/home/me/test_a.py", line 5 in test_a\n')
ELSEWHERE = Stuck(stacks=f'{HEAD}  File "/home/me/test_a.py", line 7 in loop\n')


def arrival(rank, outcome, **said):
    return Arrival(rank=rank, outcome=Outcome(outcome), at=float(rank), **said)


SYMPTOM = arrival(0, "failed", is_symptom=True)


def give_up(arrivals, stuck, skipper=None):
    step = Step(arrivals=list(arrivals))
    return given_up(step, stuck, late="no end after 9 s", skipper=skipper)


def outcomes(arrivals):
    return {each.rank: (each.outcome.value, each.caused_by) for each in arrivals}


def test_who_is_out_after_a_cause_is_aborted_by_it():
    settled = give_up([arrival(2, "failed")], {0: ELSEWHERE, 1: IN_A_COLLECTIVE})
    assert outcomes(settled) == {0: ("aborted", 2), 1: ("aborted", 2)}


def test_after_a_symptom_the_rank_that_did_not_come_is_timed_out_and_who_waits_is_aborted_by_it():
    settled = give_up([SYMPTOM], {1: IN_A_COLLECTIVE, 2: ELSEWHERE})
    assert outcomes(settled) == {2: ("timed_out", None), 1: ("aborted", 2)}
    assert "its peers waited for it in vain; it was in /home/me/test_a.py:7 in loop" in settled[0].message


def test_where_all_wait_in_collectives_the_symptom_leads():
    settled = give_up([SYMPTOM], {1: IN_A_COLLECTIVE, 2: IN_A_COLLECTIVE})
    assert outcomes(settled) == {1: ("aborted", 0), 2: ("aborted", 0)}


def test_at_the_limit_who_waits_in_a_collective_is_a_victim_of_who_does_not():
    settled = give_up([], {0: IN_A_COLLECTIVE, 1: ELSEWHERE})
    assert outcomes(settled) == {1: ("timed_out", None), 0: ("aborted", 1)}


def test_at_the_limit_all_are_timed_out_where_all_wait():
    settled = give_up([], {0: IN_A_COLLECTIVE, 1: IN_A_COLLECTIVE})
    assert {each.outcome for each in settled} == {Outcome.TIMED_OUT}


def test_a_stopped_rank_says_so():
    [settled] = give_up([], {1: Stuck(is_stopped=True, phase="call")})
    assert settled.message == "rank 1 timed out: no end after 9 s, in the call of this test; it is stopped (SIGSTOP)"


def test_the_peers_of_a_rank_that_skipped_are_aborted_by_it_even_after_symptoms():
    skipper = arrival(3, "skipped")
    settled = give_up([SYMPTOM, skipper], {1: ELSEWHERE}, skipper)
    assert outcomes(settled) == {1: ("aborted", 3)}


ARRIVALS = st.builds(
    arrival,
    st.integers(0, 3),
    st.sampled_from(["passed", "failed", "crashed", "skipped"]),
    is_symptom=st.booleans(),
)


@given(st.lists(ARRIVALS, max_size=4), st.sets(st.integers(4, 7), min_size=1), st.data())
def test_every_rank_that_is_out_gets_one_bad_outcome_and_no_abort_is_without_a_cause(arrivals, out, data):
    stuck = {rank: data.draw(st.sampled_from([IN_A_COLLECTIVE, ELSEWHERE, Stuck()])) for rank in out}
    settled = give_up(arrivals, stuck)
    assert sorted(each.rank for each in settled) == sorted(out)
    for each in settled:
        assert each.outcome.is_bad
        assert (each.outcome is Outcome.ABORTED) == (each.caused_by is not None)


@given(st.lists(ARRIVALS, max_size=6))
def test_a_symptom_leads_only_where_there_is_nothing_else(arrivals):
    step = Step()
    for each in arrivals:
        step.note(each)
    own = [each for each in step.arrivals if each.outcome.is_bad and not each.is_symptom]
    assert step.leader is (own[0] if own else next((each for each in step.arrivals if each.outcome.is_bad), None))


@pytest.mark.parametrize("outcome", ["failed", "crashed"])
def test_at_the_end_of_a_step_symptoms_are_consequences_of_the_cause(outcome):
    step = Step(arrivals=[SYMPTOM, arrival(1, outcome)])
    step.explain_symptoms(None)
    assert [(each.consequence, each.caused_by) for each in step.arrivals] == [(True, 1), (False, None)]
