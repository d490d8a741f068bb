"""Which repetition is next, and what the journal keeps of those that there were."""

from dataclasses import dataclass, field

import pytest

from allranks.agent.program import ItemOptions, Program
from allranks.agent.supervisor.test_loop import RepetitionJournal
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.stress_run import (
    MOST_KEPT,
    MOST_NOTES,
    MOST_PER_GANG,
    MOST_PER_KIND,
    TURN,
    Repetitions,
)
from allranks.protocol.config import TimeLimit
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import GangReady, LeftBehind, NotRun, Passed, RankEnded, Repeated, TestStarted

LIMIT = TimeLimit(value=1, setting="limits.test")


@dataclass
class Job:
    """A job whose tests have the gangs of these letters."""

    gangs: str
    stress: Stress
    maxfail: int = 0
    records: list = field(default_factory=list)
    now: float = 100.0

    def __post_init__(self):
        terms = [
            ItemOptions(gang=("test" if gang == "t" else gang,), has_process_group=True, limit=LIMIT)
            for gang in self.gangs
        ]
        tests = tuple(f"t{number}" for number in range(len(terms)))
        program = Program(tests=tests, options=tuple(terms), maxfail=self.maxfail)
        self.repetitions = Repetitions(self.stress, program, self, lambda: self.now)
        self.journal = RepetitionJournal(self, self.repetitions)

    def write(self, record):
        self.records.append(record)

    def all(self, kind):
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def tallies(self):
        return {record.nodeid: record.tally for record in self.all(Repeated)}

    def repeat(self, index, *, bad="", seconds=0.01, **more):
        number = self.repetitions.begin(index)
        self.journal.write(TestStarted(nodeid=f"t{index}", number=number))
        self.now += seconds
        if bad:
            self.journal.write(ended(f"t{index}", message=bad.format(number), **more))
        else:
            times = {"arrived": (self.now, self.now), "seconds": (seconds, 0.0)}
            self.journal.write(Passed(nodeid=f"t{index}", ranks=(0, 1), world_size=2, **times))

    def turn(self, **more):
        """A gang's turn; the tests that it ran."""
        if (indices := self.repetitions.next_turn()) is None:
            return None
        ran = []
        for index, _ in self.repetitions.steps(indices):
            ran.append(index)
            self.repeat(index, **more)
        self.journal.conclude()
        return ran


def ended(nodeid, *, outcome=Outcome.FAILED, **more):
    return RankEnded(nodeid=nodeid, rank=0, outcome=outcome, world_size=2, arrived=1.0, **more)


def test_the_tests_of_a_gang_take_turns():
    job = Job("aaa", Stress(count=3))
    assert job.turn() == [0, 1, 2] * 3
    assert job.turn() is None


def test_a_gang_for_each_repetition_where_ranks_are_not_shared():
    job = Job("tt", Stress(count=2))
    assert [job.turn() for _ in range(5)] == [[0], [1], [0], [1], None]


def test_a_gang_that_others_wait_for_ends_its_turn_after_one_pass_and_a_while():
    job = Job("aab", Stress(count=1_000))
    first = job.turn(seconds=TURN / 10)
    assert len(first) in {10, 11}  # as floats add up
    assert job.turn(seconds=2 * TURN) == [2]


def test_a_gang_is_renewed_after_many_repetitions():
    job = Job("a", Stress(count=2 * MOST_PER_GANG))
    assert len(job.turn()) == MOST_PER_GANG


def test_the_test_with_the_fewest_repetitions_is_first_after_a_failure():
    job = Job("aa", Stress(count=2))
    job.repetitions.next_turn()
    job.repeat(0, bad="no")
    job.journal.conclude()
    assert job.repetitions.next_turn() == [1, 0]


def test_repetitions_begin_while_there_is_time():
    job = Job("a", Stress(seconds=1.0))
    assert len(job.turn(seconds=0.3)) == 4
    assert job.turn() is None


def test_tests_without_a_repetition_are_told_of():
    job = Job("ab", Stress(seconds=1.0))
    job.turn(seconds=2.0)
    assert job.turn() is None
    job.repetitions.finish()
    assert [record.tests for record in job.all(NotRun)] == [("t1",)]


def test_what_passes_leaves_a_count_and_its_last_records():
    job = Job("a", Stress(count=500))
    while job.turn():
        pass
    job.repetitions.finish()
    assert len(job.all(Passed)) == len(job.all(TestStarted)) == 1
    assert len(job.records) < 10
    assert job.tallies["t0"].runs == 500


def test_the_median_is_right_to_five_percent_and_the_slowest_has_its_number():
    job = Job("a", Stress(count=99))
    job.repetitions.next_turn()
    for number in range(1, 100):
        job.repeat(0, seconds=number / 1000)
    job.journal.conclude()
    job.repetitions.finish()
    tally = job.tallies["t0"]
    assert tally.median == pytest.approx(0.05, rel=0.05)
    assert (tally.slowest, tally.slowest_at) == (0.099, 99)


def test_bad_repetitions_are_kept_by_name_up_to_a_few_dozen_that_are_alike():
    job = Job("a", Stress(count=200, skew="light"))
    for _ in range(100):
        job.repetitions.next_turn()
        job.repeat(0, bad="the {}th went wrong")
        job.repetitions.next_turn()
        job.repeat(0, bad="otherwise")
    job.journal.conclude()
    job.repetitions.finish()
    names = [record.nodeid for record in job.all(TestStarted)]
    assert names[:3] == ["t0", "t0 (repetition 1, seed 0, skew light)", "t0 (repetition 2, seed 0, skew light)"]
    assert len(names) == 1 + 2 * MOST_PER_KIND
    tally = job.tallies["t0"]
    assert (tally.bad, tally.kept, tally.first_bad) == (200, 2 * MOST_PER_KIND, 1)


def test_the_bad_repetitions_of_a_job_have_a_limit():
    job = Job("a" * 40, Stress(count=40))
    for _ in range(40):
        for index in range(40):
            job.repeat(index, bad=f"{index}")
    job.journal.conclude()
    job.repetitions.finish()
    assert sum(tally.kept for tally in job.tallies.values()) == MOST_KEPT


def test_each_tally_comes_with_the_counts_of_all_tests():
    job = Job("mm", Stress(count=10))
    for index, bad in ((0, ""), (1, "assert 1 == {}"), (0, ""), (1, "")):
        job.repeat(index, bad=bad, seconds=2)
    job.journal.conclude()
    report = [(record.nodeid, record.tally.runs, record.runs, record.bad) for record in job.all(Repeated)]
    starts = [("t0", 0, 0, 0), ("t1", 0, 0, 0)]
    assert [item for item in report if item in starts] == starts
    assert [item for item in report if item not in starts] == [
        ("t0", 1, 1, 0),
        ("t1", 1, 2, 1),
        ("t0", 2, 3, 1),
        ("t1", 2, 4, 1),
    ]


@pytest.mark.parametrize("skew", ["off", "light"])
def test_a_test_is_said_to_be_repeated_before_any_repetition_has_a_name_of_its_own(skew):
    job = Job("a", Stress(count=3, skew=skew))
    job.repeat(0, bad="assert 1 == 2")
    job.journal.conclude()
    of_test = [record for record in job.records if getattr(record, "nodeid", "").startswith("t0")]
    assert [type(record) for record in of_test[:3]] == [TestStarted, Repeated, TestStarted]
    assert of_test[1].nodeid == "t0"
    assert "(repetition 1" in of_test[2].nodeid
    assert of_test[1].tally.command == "stress"


def test_the_failure_to_search_is_the_first_of_the_most_frequent_kind():
    job = Job("m", Stress(count=10))
    for bad in ("", "rare", "", "assert {} == 0", "assert {} == 0", "", "other"):
        job.repeat(0, bad=bad)
    job.journal.conclude()
    assert [failure.number for failure in job.repetitions.typical_failures()] == [4]


def test_a_test_with_a_bad_repetition_fails_with_its_rate():
    job = Job("a", Stress(count=4))
    for number in range(4):
        job.repeat(0, bad="no" if number == 2 else "", text="where")
    job.journal.conclude()
    job.repetitions.finish()
    other, lead = [record for record in job.all(RankEnded) if record.nodeid == "t0"]
    assert (lead.rank, lead.outcome, lead.text) == (0, Outcome.FAILED, "no\nwhere")
    assert lead.message.startswith("1 of 4 repetitions failed: 25 % (95 % interval 4.6 to 69.9 %)")
    assert (other.rank, other.caused_by, other.consequence) == (1, 0, True)


def test_a_bad_end_of_a_gang_is_that_of_its_last_repetition():
    job = Job("a", Stress(count=2))
    job.repeat(0)
    job.repeat(0)
    job.journal.write(ended("t0", message="could not be torn down"))
    job.journal.conclude()
    job.repetitions.finish()
    assert (job.tallies["t0"].runs, job.tallies["t0"].first_bad) == (2, 2)


def test_a_repetition_that_is_ended_from_outside_does_not_count():
    job = Job("a", Stress(count=9))
    job.repeat(0)
    job.repeat(0, bad="the job was ended", outcome=Outcome.ABORTED)
    job.journal.conclude()
    job.repetitions.finish()
    assert (job.tallies["t0"].runs, job.tallies["t0"].bad) == (1, 0)
    assert job.all(Passed)


def test_a_repetition_without_an_outcome_leaves_its_test_without_one():
    job = Job("a", Stress(count=9))
    job.repeat(0)
    job.repetitions.begin(0)
    job.journal.write(TestStarted(nodeid="t0", number=2))
    job.journal.conclude()
    job.repetitions.finish()
    assert not job.all(Passed)


def test_ranks_that_disagree_are_a_bad_repetition():
    job = Job("a", Stress(count=1))
    job.repeat(0)
    job.journal.write(ended("t0", outcome=Outcome.SKIPPED))
    job.journal.conclude()
    job.repetitions.finish()
    assert job.tallies["t0"].bad == 1


def test_the_first_failure_stops_all_gangs():
    job = Job("ab", Stress(count=9), maxfail=1)
    indices = job.repetitions.next_turn()
    steps = job.repetitions.steps(indices)
    next(steps)
    job.repeat(1, bad="no")
    job.journal.conclude()
    assert next(steps, None) is None
    assert job.turn() is None


def test_records_about_gangs_have_a_limit_and_leftovers_are_counted():
    job = Job("t", Stress(count=9))
    for _ in range(3 * MOST_NOTES):
        job.journal.write(GangReady())
        job.journal.write(LeftBehind(nodeid="t0", rank=0, pid=1, command="sleep"))
    assert len(job.records) == 2 * MOST_NOTES
    job.repeat(0)
    job.journal.conclude()
    job.repetitions.finish()
    assert job.tallies["t0"].left == 3 * MOST_NOTES


def test_a_time_out_of_a_test_is_called_tight_under_delays_alone():
    for skew, message in (("off", "wait timed out"), ("light", "tight timeout: wait timed out")):
        job = Job("a", Stress(count=1, skew=skew))
        job.repeat(0, bad="wait timed out")
        job.journal.conclude()
        assert job.all(RankEnded)[0].message == message
