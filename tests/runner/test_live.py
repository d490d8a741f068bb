from dataclasses import replace

import pytest
from scripted_engine import FINISHED, PASSED, facts_of, failed

from allranks.engines.base import Placement
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Collected, Passed, Printed
from allranks.report.run_files import JobError
from allranks.runner.log_lines import LiveView
from allranks.runner.progress import Tests


@pytest.fixture
def live(lines):
    return LiveView(lines)


def test_a_job_says_where_it_runs(live, lines):
    live.job_started("cell/suite", "image:1")
    assert lines == ["cell/suite: running in image:1"]


def test_a_job_says_where_it_is_in_a_queue(live, lines):
    live.job_is_at("cell/suite", Placement("queued (Resources)", is_placed=False))
    assert lines == ["cell/suite: queued (Resources)"]


def test_the_first_bad_outcome_of_a_job_is_said_at_once_and_the_next_are_not(live, lines):
    for record in (PASSED, failed("t", 1, "a\n b"), failed("u", outcome=Outcome.CRASHED)):
        live.take("cell/suite", record)
    assert lines == ["cell/suite: first failure: rank 1 failed in t: a b"]


def test_the_first_bad_outcome_is_not_named_twice(live, lines):
    live.take("cell/suite", failed("t", 1, "rank 1 was killed by SIGKILL", outcome=Outcome.CRASHED))
    assert lines == ["cell/suite: first failure: rank 1 crashed in t: was killed by SIGKILL"]


def test_each_job_has_a_first_failure_of_its_own(live, lines):
    live.take("one", failed("t"))
    live.take("two", failed("t"))
    assert len(lines) == 2


def test_a_line_that_a_rank_printed_is_shown_with_its_rank(live, lines):
    live.take("cell/suite", Printed(rank=3, line="half way"))
    assert lines == ["[rank 3] half way"]


@pytest.mark.parametrize("record", [Collected(tests=("t",)), PASSED, failed("t", outcome=Outcome.SKIPPED), FINISHED])
def test_other_records_say_nothing(live, lines, record):
    live.take("cell/suite", record)
    assert lines == []


def test_an_end_counts_tests_by_their_worst_rank(live, lines):
    def passed(nodeid, *ranks):
        return Passed(nodeid=nodeid, ranks=ranks, arrived=ranks, seconds=ranks, world_size=2)

    skipped = [failed("c", rank, outcome=Outcome.SKIPPED) for rank in (0, 1)]
    facts = facts_of([passed("a", 0), failed("a", 1), passed("b", 0, 1), *skipped])
    live.job_ended("cell/suite", facts.tests, 1.26, None)
    assert lines == ["cell/suite: 1 bad, 1 passed, 1 skipped (1.3 s)"]


def test_an_end_without_tests_says_so(live, lines):
    live.job_ended("cell/suite", Tests(), 0, None)
    assert lines == ["cell/suite: no test ran (0.0 s)"]


def test_an_error_of_the_job_is_said_with_its_cause_and_remedy(live, lines):
    live.job_ended("cell/suite", Tests(), 1, JobError(kind="agent", what="It died.", why="a\n\nb", remedy="Do."))
    assert lines == ["cell/suite: It died. (1.0 s)", "    a", "    b", "    Do."]


def test_only_the_end_of_a_long_cause_is_said(live, lines):
    live.job_ended("cell/suite", Tests(), 1, JobError(kind="agent", what="x", why="\n".join(map(str, range(40)))))
    assert lines[1] == "    …"
    assert lines[-1] == "    39"
    assert len(lines) == 14


@pytest.fixture
def quiet(lines):
    return LiveView(lines, "quiet")


@pytest.fixture
def verbose(lines):
    return LiveView(lines, "verbose")


def test_a_quiet_run_says_what_is_wrong_with_a_job_and_nothing_else(quiet, lines, make_spec):
    quiet.job_requested(make_spec())
    quiet.job_started("one/suite", "image:1")
    quiet.take("one/suite", PASSED)
    quiet.job_ended("one/suite", facts_of([PASSED]).tests, 1, None)
    assert lines == []
    quiet.take("two/suite", failed("t", 1, "no"))
    quiet.job_ended("two/suite", facts_of([failed("t", 1, "no")]).tests, 1, None)
    quiet.job_ended("three/suite", Tests(), 1, JobError(kind="agent", what="It died."))
    assert lines == [
        "two/suite: first failure: rank 1 failed in t: no",
        "two/suite: 1 bad (1.0 s)",
        "three/suite: It died. (1.0 s)",
    ]


def test_a_verbose_run_shows_each_request(verbose, lines, make_spec):
    spec = make_spec(paths=("suite",), world_size=4, pytest_args=("-k", "x"), environment={"B": "2", "A": "1"})
    verbose.job_requested(spec)
    assert lines[0] == f"{spec.job_id}: attempt {spec.attempt} of run {spec.run_id}, seed {spec.agent.seed}"
    assert "    pytest: suite -k x" in lines
    assert "    ranks: 4 on 1 node(s), gloo by env" in lines
    assert "    environment: A=1 B=2" in lines
    assert any(line.startswith("    python: ") for line in lines)
    assert any(line.startswith("    limits: ") for line in lines)


def test_a_verbose_run_shows_the_evidence_of_every_bad_rank(verbose, lines):
    text = "\n".join(map(str, range(150)))
    for rank in (0, 1):
        ended = replace(failed("t", rank, "no"), text=text, stdout="\x1b[2Jprinted\n", stderr="warned\n")
        verbose.take("cell/suite", ended)
    assert lines.count("    [rank 0] 149") == lines.count("    [rank 1] 149") == 1
    assert "    [rank 0] 49" not in lines
    assert "    [rank 0] … 50 lines above" in lines
    place = lines.index("    [rank 1] captured stdout:")
    assert lines[place + 1 : place + 4] == [
        "    [rank 1] printed", "    [rank 1] captured stderr:", "    [rank 1] warned",
    ]  # fmt: skip
    assert lines[0] == "cell/suite: first failure: rank 0 failed in t: no"
    assert "cell/suite: rank 1 failed in t: no" in lines
