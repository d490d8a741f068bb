import pytest

from allranks.schedule.journal import JobError
from allranks.schedule.live import LiveView


@pytest.fixture
def live(lines):
    return LiveView(lines)


def arrived(nodeid, rank, outcome, message=""):
    return {"event": "arrived", "nodeid": nodeid, "rank": rank, "outcome": outcome, "message": message}


def test_a_job_says_where_it_runs(live, lines):
    live.job_started("cell/suite", "image:1")
    assert lines == ["cell/suite: running in image:1"]


def test_the_first_bad_outcome_of_a_job_is_said_at_once_and_the_next_are_not(live, lines):
    for event in (arrived("t", 0, "passed"), arrived("t", 1, "failed", "a\n b"), arrived("u", 0, "crashed")):
        live.event("cell/suite", event)
    assert lines == ["cell/suite: first failure: rank 1 failed in t: a b"]


def test_the_first_bad_outcome_is_not_named_twice(live, lines):
    live.event("cell/suite", arrived("t", 1, "timed_out", "rank 1 timed out: no end after 2 s"))
    assert lines == ["cell/suite: first failure: rank 1 timed out in t: no end after 2 s"]


def test_each_job_has_a_first_failure_of_its_own(live, lines):
    live.event("one", arrived("t", 0, "failed"))
    live.event("two", arrived("t", 0, "failed"))
    assert len(lines) == 2


def test_a_line_that_a_rank_printed_is_shown_with_its_rank(live, lines):
    live.event("cell/suite", {"event": "output", "rank": 3, "line": "half way"})
    assert lines == ["[rank 3] half way"]


def test_other_events_say_nothing(live, lines):
    live.event("cell/suite", {"event": "collected"})
    assert lines == []


def test_an_end_counts_tests_by_their_worst_rank(live, lines):
    events = [
        arrived("a", 0, "passed"), arrived("a", 1, "failed"),
        arrived("b", 0, "passed"), arrived("b", 1, "passed"),
        arrived("c", 0, "skipped"), arrived("c", 1, "skipped"),
    ]  # fmt: skip
    live.job_ended("cell/suite", events, 1.26, None)
    assert lines == ["cell/suite: 1 bad, 1 passed, 1 skipped (1.3 s)"]


def test_an_end_without_tests_says_so(live, lines):
    live.job_ended("cell/suite", [], 0, None)
    assert lines == ["cell/suite: no test ran (0.0 s)"]


def test_an_error_of_the_job_is_said_with_its_cause_and_remedy(live, lines):
    live.job_ended("cell/suite", [], 1, JobError(kind="agent", what="It died.", why="a\n\nb", remedy="Do."))
    assert lines == ["cell/suite: It died. (1.0 s)", "    a", "    b", "    Do."]


def test_only_the_end_of_a_long_cause_is_said(live, lines):
    live.job_ended("cell/suite", [], 1, JobError(kind="agent", what="x", why="\n".join(map(str, range(40)))))
    assert lines[1] == "    …"
    assert lines[-1] == "    39"
    assert len(lines) == 14
