import pytest
from scripted_engine import failed

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Collected, Passed, Repeated, TestStarted
from allranks.protocol.repetitions import RepetitionTally
from allranks.runner.progress import Tests, format_rate


def ended(nodeid, outcome, rank=0):
    if outcome == "passed":
        return Passed(nodeid=nodeid, ranks=(rank,), arrived=(1.0,), seconds=(1.0,), world_size=3)
    return failed(nodeid, rank, outcome=Outcome(outcome), world_size=3)


def counted(*records):
    tests = Tests()
    for record in records:
        tests.update(record)
    return tests


def test_a_test_counts_once_by_the_worst_of_its_ranks():
    tests = counted(
        Collected(tests=("t", "u"), is_last=False), Collected(tests=("v", "w")),
        TestStarted(nodeid="t", may_disagree=True),
        ended("t", "skipped"), ended("t", "passed", 1), ended("t", "passed", 2),
        ended("u", "passed"), ended("u", "crashed", 1), ended("u", "passed", 2),
        ended("v", "xfailed"),
    )  # fmt: skip
    assert (tests.counts.total(), tests.collected) == (3, 4)
    assert (tests.counts, tests.first_failed) == ({"passed": 1, "failed": 1, "skipped": 1}, "u")


@pytest.mark.parametrize(("one", "other"), [("skipped", "passed"), ("passed", "skipped"), ("xfailed", "passed")])
def test_a_test_whose_ranks_disagree_has_failed(one, other):
    tests = counted(TestStarted(nodeid="t"), ended("t", one))
    assert tests.counts["failed"] == 0
    tests.update(ended("t", other, 1))
    assert +tests.counts == {"failed": 1}


def test_a_test_runs_from_its_start_to_the_outcomes_of_its_ranks():
    tests = counted(TestStarted(nodeid="t"), TestStarted(nodeid="u"), ended("t", "passed"))
    assert list(tests.running) == ["u"]


def test_a_test_that_runs_again_counts_by_its_last_run():
    tests = counted(ended("t", "failed"), TestStarted(nodeid="t", number=2))
    assert (+tests.counts, tests.first_failed, list(tests.running)) == ({}, "", ["t"])


def test_a_repeated_test_has_a_rate_instead_of_a_duration():
    record = Repeated(nodeid="t", tally=RepetitionTally(runs=10), runs=1500, bad=1480)
    assert counted(TestStarted(nodeid="t"), record).running == {}
    assert format_rate(record) == "1,480 of 1,500 runs failed (98.7 %)"


def test_an_ended_job_keeps_only_counts():
    tests = counted(ended("t", "passed"), TestStarted(nodeid="u"))
    tests.forget_names()
    assert (+tests.counts, tests.running, tests._outcomes) == ({"passed": 1}, {}, {})
