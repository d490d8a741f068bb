"""What a journal tells of the timeline of a failed test, and that no verdict depends on it."""

from dataclasses import replace

import pytest

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import (
    SCHEMA,
    EnteredCollective,
    FailureCourse,
    Finished,
    JobStarted,
    PhaseEnd,
    RankEnded,
    TestStarted,
    encode,
)
from allranks.report.journal import read_journal
from allranks.report.judge.rules import VerdictPolicy, verdict
from allranks.report.judged import CellSuite
from allranks.report.rank_timeline import (
    MOST_BYTES,
    MOST_COLLECTIVES,
    RANK_LIMIT,
    RankTimeline,
    TimelineReader,
    missing_ranks,
    waits,
)
from allranks.report.results import RankResult, TestVerdict

TEST = "t.py::test"


def entered(number=1, kind="all_reduce", group="default", **seconds):
    ranks = tuple(int(rank.removeprefix("rank")) for rank in seconds)
    return EnteredCollective(group=group, number=number, kind=kind, ranks=ranks, seconds=tuple(seconds.values()))


def ended(rank, outcome="failed", at=12.0, **more):
    return RankEnded(nodeid=TEST, rank=rank, outcome=Outcome(outcome), world_size=4, arrived=at, **more)


def read(*records):
    reader = TimelineReader()
    for record in (TestStarted(nodeid=TEST, at=10.0), *records):
        reader.add(record)
    return reader.found.get(TEST)


def results(*outcomes, at=12.0):
    return [
        RankResult(nodeid=TEST, classname="", name="", rank=rank, outcome=Outcome(outcome), at=at)
        for rank, outcome in enumerate(outcomes)
    ]


def told(*collectives, world=4):
    timeline = read(FailureCourse(nodeid=TEST, collectives=collectives), ended(1))
    return list(waits(timeline, results(*["failed"] * world)))


def test_a_rank_that_never_came_is_named_with_those_that_waited():
    last = entered(2, rank0=0.5, rank2=1.0, rank3=0.6)
    assert told(entered(1, rank0=0.1, rank1=0.1, rank2=0.1, rank3=0.1), last) == [
        "rank 1 never called all_reduce #2; ranks 0, 2, 3 called it, rank 0 first, 1.50 s before the end",
        "rank 2 called all_reduce #2 500 ms after rank 0",
    ]


def test_a_rank_that_came_late_is_named():
    assert told(entered(1, rank0=0.1, rank1=0.1), entered(2, rank0=0.2, rank1=1.9), world=2) == [
        "rank 1 called all_reduce #2 1.70 s after rank 0"
    ]


def test_ranks_that_came_together_are_not_told():
    assert told(entered(1, rank0=0.1, rank1=0.12), world=2) == []


def test_a_rank_that_went_on_has_come_even_if_its_call_is_forgotten():
    timeline = read(FailureCourse(nodeid=TEST, collectives=(entered(1, rank0=0.1), entered(9, rank1=0.2))))
    first, last = timeline.collectives
    ranks = results(*["failed"] * 2)
    assert missing_ranks(timeline, first, ranks) == []
    assert missing_ranks(timeline, last, ranks) == [0]


def test_of_another_group_only_ranks_that_were_seen_in_it_can_be_absent():
    timeline = read(
        FailureCourse(
            nodeid=TEST, collectives=(entered(1, group="7", rank0=0.1, rank1=0.1), entered(2, group="7", rank0=0.2))
        )
    )
    assert missing_ranks(timeline, timeline.collectives[1], results(*["failed"] * 4)) == [1]
    assert next(waits(timeline, results(*["failed"] * 4))).startswith("rank 1 never called all_reduce #2 of group 7")


def test_phases_are_kept_for_each_rank():
    phases = (PhaseEnd(when="setup", outcome=Outcome.PASSED, seconds=0.2),)
    timeline = read(ended(1, phases=phases), ended(0, "aborted"))
    assert (timeline.began, timeline.phases) == (10.0, {1: phases, 0: ()})


def test_a_test_that_went_well_has_no_course():
    assert read(ended(0, "skipped"), ended(1, "xfailed")) is None


def test_a_further_try_begins_anew():
    timeline = read(ended(1), TestStarted(nodeid=TEST, number=2, at=20.0), ended(0))
    assert (timeline.began, list(timeline.phases)) == (20.0, [0])


def test_a_course_of_another_attempt_is_not_this_ones():
    timeline = RankTimeline(began=10.0)
    assert timeline.is_of(results("failed", at=12.0))
    assert not timeline.is_of(results("failed", at=9.0))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_times_that_no_clock_has_measured_are_left_out(seconds):
    assert read(FailureCourse(nodeid=TEST, collectives=(entered(1, rank0=seconds),))).collectives == ()


def test_a_record_of_any_size_is_bounded():
    many = EnteredCollective(
        group="g" * 5000, number=1, kind="\x1b[31m\x00\ud800\n" * 90, ranks=tuple(range(10**5)), seconds=(0.5,) * 10**5
    )
    timeline = read(FailureCourse(nodeid=TEST, collectives=(many,) * 500, stdout="x" * 10**6, passed=0))
    assert len(timeline.collectives) == MOST_COLLECTIVES
    assert {len(each.ranks) for each in timeline.collectives} == {RANK_LIMIT}
    assert all(len(each.name) < 300 and each.name.isprintable() for each in timeline.collectives)
    assert len(timeline.stdout) < 20_000


def test_of_a_job_with_many_failures_the_first_have_courses():
    record = FailureCourse(nodeid="", collectives=(entered(1, **{f"rank{n}": 0.1 for n in range(500)}),) * 16)
    reader = TimelineReader()
    for number in range(1000):
        reader.add(TestStarted(nodeid=str(number), at=1.0))
        reader.add(replace(record, nodeid=str(number), stdout="x" * 9000))
    assert 50 < len(reader.found) < 200
    assert sum(timeline.bytes for timeline in reader.found.values()) < 1.1 * MOST_BYTES


def test_no_result_depends_on_a_course(tmp_path):
    started = JobStarted(schema=SCHEMA, run_id="r", cell="c", suite="s", attempt=1, world_size=2)
    ends = [ended(1), ended(0, "aborted", consequence=True)]
    timelines = [
        FailureCourse(nodeid=TEST, collectives=(entered(1, rank0=0.1),), passed=0, stdout="said"),
        FailureCourse(nodeid="never.py::heard_of"),
    ]
    read = []
    for name, records in (("with", [*timelines, *ends, timelines[0]]), ("without", ends)):
        path = tmp_path / name
        lines = [started, TestStarted(nodeid=TEST, at=1.0), *records, Finished(status=1)]
        path.write_bytes(b"".join(encode(record) + b"\n" for record in lines))
        read.append([(file.rank, file.problem, file.results) for file in read_journal(path)])
    assert read[0] == read[1]


def test_terminal_and_summary_have_one_line_about_a_rank_that_never_came():
    timeline = read(FailureCourse(nodeid=TEST, collectives=(entered(1, rank0=0.1), entered(5, group="7", rank0=0.2))))
    ranks = results("aborted", "failed")
    test = TestVerdict(nodeid=TEST, classname="", name="test", verdict=verdict(ranks, VerdictPolicy()), ranks=ranks)
    suites = [
        CellSuite(cell="c", suite="s", tests=(test,), timelines=timelines) for timelines in ({TEST: timeline}, {})
    ]
    told, untold = (suite.row.failures[0].traceback for suite in suites)
    assert set(told) - set(untold) == {"rank 1 never called all_reduce #1; rank 0 called it 1.90 s before the end"}
