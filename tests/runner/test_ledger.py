"""Records that no correct agent sends: a test for each rule, and random records in any order."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import BEGUN, COLLECTED, FINISHED, PASSED, PASSING, failed

from allranks.engines.agent_output import Damage
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import (
    MOST_RANKS,
    Begun,
    Collected,
    ContainerEnded,
    FullCollection,
    GangReady,
    GpuFailed,
    GpusChecked,
    Interrupted,
    JobStarted,
    NotRun,
    Printed,
    Repeated,
    TestStarted,
)
from allranks.protocol.repetitions import RepetitionTally
from allranks.runner import ledger
from allranks.runner.ledger import ContradictionError, Ledger

SKIPPED = failed("module.py", outcome=Outcome.SKIPPED, phase="collect")
CHECKED = GpusChecked(gpus=("GPU-a",), seconds=1.0)


def take(*records, node=0, world_size=2, nodes=1):
    """Passes the records of one agent to a ledger; returns which of them were new."""
    book = Ledger(world_size, nodes)
    return [book.take(node, record) for record in records]


def test_a_correct_job_is_accepted():
    ends = (PASSED, failed("t"), SKIPPED)
    records = (BEGUN, COLLECTED, TestStarted(nodeid="t"), *ends, Printed(rank=0, line="x"), Interrupted(), FINISHED)
    assert all(take(*records))


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([COLLECTED], "Collected before Begun"),
        ([BEGUN, BEGUN], "a second Begun"),
        ([Begun(schema=99)], "records of schema 99, but this version of allranks reads schema"),
        ([Begun(schema=BEGUN.schema, node=1)], "identifies itself as that of node 1"),
        ([BEGUN, *PASSING, GangReady()], "GangReady after Finished"),
        ([BEGUN, Damage("record 2, from byte 9 on, is not JSON")], "record 2, from byte 9 on, is not JSON"),
        ([BEGUN, JobStarted(schema=2, run_id="", cell="", suite="", attempt=1, world_size=1)], "JobStarted, which no"),
        ([BEGUN, ContainerEnded(status=0, memory_kills=0)], "ContainerEnded, which no agent does"),
        ([BEGUN, COLLECTED, COLLECTED], "a list of tests after the last one"),
        ([BEGUN, PASSED], "an outcome of 't', which it has not collected"),
        ([BEGUN, COLLECTED, failed("u")], "an outcome of 'u', which it has not collected"),
        ([BEGUN, replace(SKIPPED, outcome=Outcome.FAILED)], "an outcome of 'module.py', which it has not collected"),
        ([BEGUN, COLLECTED, TestStarted(nodeid="u")], "the start of 'u', which it has not collected"),
        ([BEGUN, COLLECTED, NotRun(tests=("t", "u"), reason="-x")], "did not run 'u', which it has not collected"),
        ([BEGUN, COLLECTED, replace(PASSED, ranks=(1,))], "rank 1 in 't', but the world size is 1"),
        ([BEGUN, COLLECTED, failed("t", -1, world_size=1)], "rank -1 in 't', but the world size is 1"),
        ([BEGUN, COLLECTED, PASSED, failed("t", 1)], "reports a world size of 2 for 't', but 1 before"),
        ([BEGUN, COLLECTED, replace(PASSED, world_size=MOST_RANKS + 1)], f"1 to {MOST_RANKS} are valid"),
        ([BEGUN, COLLECTED, replace(PASSED, world_size=0)], "reports a world size of 0 for 't'"),
        (
            [BEGUN, COLLECTED, replace(PASSED, seconds=())],
            "times (1) and durations (0) for one end of 't'",
        ),
        ([BEGUN, COLLECTED, replace(PASSED, ranks=(0, 0))], "mismatched ranks (2), times (1)"),
    ],
)
def test_contradictions_are_rejected_with_a_message(records, says):
    *before, last = records
    book = Ledger(2)
    for record in before:
        book.take(0, record)
    with pytest.raises(ContradictionError) as refused:
        book.take(0, last)
    assert says in str(refused.value)


def test_only_some_records_of_followers_are_new():
    own = failed("t", 1, world_size=2)
    book = Ledger(2, nodes=2)
    book.take(0, BEGUN)
    book.take(0, COLLECTED)
    records = (Begun(schema=BEGUN.schema, node=1), CHECKED, GpuFailed(gpu="", name="", message=""), COLLECTED, own)
    assert [book.take(1, record) for record in records] == [False, True, True, False, True]
    assert [book.take(1, record) for record in (Printed(rank=1, line="x"), FINISHED)] == [True, False]
    assert book.take(0, failed("t", world_size=2))
    book.close()


def test_a_follower_may_only_report_its_own_ranks():
    book = Ledger(4, nodes=2)
    book.take(0, BEGUN)
    book.take(0, COLLECTED)
    book.take(1, Begun(schema=BEGUN.schema, node=1))
    with pytest.raises(ContradictionError, match="rank 1 in 't', but node 1 only has ranks 2, 3"):
        book.take(1, failed("t", 1, world_size=4))


@pytest.mark.parametrize("is_collected", [True, False])
def test_a_follower_may_report_a_test_before_the_lead_node_collected_it(is_collected):
    book = Ledger(2, nodes=2)
    book.take(1, Begun(schema=BEGUN.schema, node=1))
    assert book.take(1, failed("t", 1, world_size=2))
    book.take(0, BEGUN)
    if is_collected:
        book.take(0, COLLECTED)
        book.close()
        return
    with pytest.raises(ContradictionError, match="'t', which the lead node's agent has not collected"):
        book.close()


def test_there_are_no_more_records_than_tests_can_have(monkeypatch):
    monkeypatch.setattr(ledger, "_RECORDS_WITHOUT_TESTS", 3)
    with pytest.raises(ContradictionError, match="more records than 1 test can have"):
        take(BEGUN, COLLECTED, *[PASSED] * 99, world_size=1)


def test_printed_output_does_not_count_as_records(monkeypatch):
    monkeypatch.setattr(ledger, "_RECORDS_WITHOUT_TESTS", 3)
    assert all(take(BEGUN, *[Printed(rank=0, line="x")] * 99))


@pytest.mark.parametrize(
    ("limit", "records", "says"),
    [
        ("MOST_TESTS", [Collected(tests=("a", "b"), is_last=False), COLLECTED], "more than 2 tests"),
        ("MOST_TESTS", [FullCollection(tests=("a",), digests=("",))] * 3, "more than 2 tests"),
        ("TESTS_IN_ONE", [FullCollection(tests=("a", "b", "c"), digests=("", "", ""))], "names 3 tests in one record"),
        ("TESTS_IN_ONE", [FullCollection(tests=("a", "b"), digests=("",))], "has 1 digest for 2 tests"),
        ("TESTS_IN_ONE", [Collected(tests=("a", "b", "c"))], "names 3 tests in one record"),
        ("MOST_EXTRA_RANKS", [COLLECTED, failed("t", 4)], "reports tests with 3 more ranks than the job"),
    ],
)
def test_the_number_of_extra_ranks_is_limited(monkeypatch, limit, records, says):
    monkeypatch.setattr(ledger, limit, 2)
    with pytest.raises(ContradictionError, match=says):
        take(BEGUN, *records)


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([BEGUN, *PASSING, SKIPPED, CHECKED, failed("t", 3)]))))
def test_any_records_in_any_order_are_accepted_or_rejected(records):
    book = Ledger(2, nodes=2)
    try:
        for node, record in records:
            book.take(node, record)
        book.close()
    except ContradictionError:
        pass


NAMED = failed("t (repetition 7, seed 3)")
REPEATED = Repeated(nodeid="t", tally=RepetitionTally())


def test_a_repetition_has_its_own_node_id_after_its_test_is_reported_as_repeated():
    assert all(take(BEGUN, COLLECTED, REPEATED, NAMED, TestStarted(nodeid=NAMED.nodeid)))


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([COLLECTED, NAMED], id="of a test that is not repeated"),
        pytest.param([COLLECTED, NAMED, REPEATED], id="before its test is reported as repeated"),
        pytest.param([COLLECTED, REPEATED, failed("u (repetition 7, seed 3)")], id="of another test"),
        pytest.param([COLLECTED, REPEATED, failed("t (repetition 0, seed 3)")], id="by a name that none has"),
        pytest.param([COLLECTED, REPEATED, NotRun(tests=("u",), reason="-x")], id="of no test at all"),
        pytest.param([COLLECTED, replace(REPEATED, nodeid="u")], id="of a test that was not collected"),
        pytest.param([COLLECTED, replace(REPEATED, nodeid=NAMED.nodeid)], id="of a repetition"),
        pytest.param([REPEATED, COLLECTED], id="before tests are collected"),
    ],
)
def test_any_other_repetition_is_a_test_that_was_not_collected(records):
    with pytest.raises(ContradictionError, match="which it has not collected"):
        take(BEGUN, *records)
