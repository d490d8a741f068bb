import pytest

from allranks.agent.call_log import LastCall
from allranks.agent.diagnose.step_outcome import (
    MAX_COLLECTIVES,
    MAX_RANKS,
    Step,
    StepOutcome,
    entered_collectives,
    timeline_record,
)
from allranks.agent.output import Output
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import EnteredCollective, FailureCourse, decode, encode


def call(number, at, **more):
    return LastCall(**{"group": "default", "number": number, "kind": "all_reduce", "at": at, **more})


def step(**outcomes):
    outcomes = [
        StepOutcome(rank=int(rank.removeprefix("rank")), outcome=outcome, at=0.0) for rank, outcome in outcomes.items()
    ]
    return Step(nodeid="t.py::test", outcomes=outcomes)


def test_each_collective_has_its_ranks_and_the_seconds_since_the_start_of_the_test():
    calls = {0: [call(2, 3_000_000_000), call(1, 2_000_000_000)], 1: [call(1, 2_500_000_000)]}
    assert entered_collectives(calls, began=1_000_000_000, ended=9_000_000_000) == (
        EnteredCollective(group="default", number=1, kind="all_reduce", ranks=(0, 1), seconds=(1.0, 1.5)),
        EnteredCollective(group="default", number=2, kind="all_reduce", ranks=(0,), seconds=(2.0,)),
    )


def test_calls_outside_of_the_test_are_ignored():
    assert entered_collectives({0: [call(1, 5), call(2, 10**200), call(3, -1)]}, began=10, ended=20) == ()


def test_a_record_is_bounded_for_any_call_log():
    calls = {rank: [call(number, number, kind="x" * 190) for number in range(40)] for rank in range(MAX_RANKS + 9)}
    kept = entered_collectives(calls, began=0, ended=100)
    assert [collective.number for collective in kept] == list(range(40 - MAX_COLLECTIVES, 40))
    assert {len(collective.ranks) for collective in kept} == {MAX_RANKS}
    assert {len(collective.kind) for collective in kept} == {60}


@pytest.mark.parametrize("number", [-1, 2**53, 10**100])
def test_a_record_is_valid_for_any_number_in_the_call_log(number):
    kept = entered_collectives(
        {0: [call(number, 5, kind="\ufffd\0\n\x1b"), call(1, 5, kind="\ufffd\0\n\x1b")]}, began=0, ended=9
    )
    record = FailureCourse(nodeid="t.py::test", collectives=kept)
    assert decode(encode(record)) == record
    assert [collective.number for collective in kept] == [1]


def test_the_output_of_the_first_rank_that_passed_is_kept():
    outputs = {0: Output(), 1: Output(stdout="failed"), 2: Output(stdout="passed"), 3: Output(stdout="also passed")}
    wrong = step(rank0=Outcome.PASSED, rank1=Outcome.FAILED, rank2=Outcome.PASSED, rank3=Outcome.PASSED)
    record = timeline_record(wrong, "t.py::test", outputs)
    assert (record.passed, record.stdout, record.stderr) == (2, "passed", "")


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.SKIPPED])
def test_a_test_that_did_not_fail_has_no_record(outcome):
    assert (
        timeline_record(step(rank0=Outcome.PASSED, rank1=outcome), "t.py::test", {0: Output(stdout="printed")}) is None
    )
