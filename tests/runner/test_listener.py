import time
from dataclasses import replace

import pytest
from scripted_engine import FINISHED, PASSED, facts_of, failed

from allranks.engines.base import Placement
from allranks.protocol.config import TimeLimits
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Collected, Location, Passed, Printed, Repeated, TestSlow, TestStarted
from allranks.protocol.repetitions import RepetitionTally
from allranks.report.run_files import JobError
from allranks.runner.listener import RunListener
from allranks.runner.progress import Tests

SLOW = TestSlow(nodeid="t", seconds=30.0, ended=(), locations=())


@pytest.fixture
def live(lines):
    return RunListener(lines)


def test_the_location_of_a_job_is_printed(live, lines, make_spec):
    spec = make_spec()
    live.job_started(spec, Tests())
    assert lines == [f"{spec.job_id}: running as processes of {spec.python}"]


def test_the_queue_status_of_a_job_is_printed(live, lines):
    live.placement_changed("cell/suite", Placement("queued (Resources)", is_placed=False))
    assert lines == ["cell/suite: queued (Resources)"]


def test_only_the_first_failure_of_a_job_is_printed(live, lines):
    for record in (PASSED, failed("t", 1, "a\n b"), failed("u", outcome=Outcome.CRASHED)):
        live.take("cell/suite", record)
    assert lines == ["cell/suite: first failure: rank 1 failed in t: a b"]


def test_the_first_failure_does_not_repeat_the_rank(live, lines):
    live.take("cell/suite", failed("t", 1, "rank 1 was killed by SIGKILL", outcome=Outcome.CRASHED))
    assert lines == ["cell/suite: first failure: rank 1 crashed in t: was killed by SIGKILL"]


def test_the_first_primary_failure_is_printed_although_a_secondary_one_came_first(live, lines):
    live.take("cell/suite", failed("t", 0, "recv timed out", consequence=True))
    live.take("cell/suite", failed("t", 2, outcome=Outcome.ABORTED))
    live.take("cell/suite", failed("t", 1, "no progress", outcome=Outcome.TIMED_OUT))
    assert lines == ["cell/suite: first failure: rank 1 timed out in t: no progress"]


def test_the_first_failure_of_each_job_is_printed(live, lines):
    live.take("one", failed("t"))
    live.take("two", failed("t"))
    assert len(lines) == 2


def test_output_of_ranks_is_printed_with_the_rank(live, lines):
    live.take("cell/suite", Printed(rank=3, line="half way"))
    assert lines == ["[rank 3] half way"]


@pytest.mark.parametrize("record", [Collected(tests=("t",)), PASSED, failed("t", outcome=Outcome.SKIPPED), FINISHED])
def test_other_records_print_nothing(live, lines, record):
    live.take("cell/suite", record)
    assert lines == []


def test_the_counts_of_a_job_are_by_the_worst_rank(live, lines):
    def passed(nodeid, *ranks):
        return Passed(nodeid=nodeid, ranks=ranks, arrived=ranks, seconds=ranks, world_size=2)

    skipped = [failed("c", rank, outcome=Outcome.SKIPPED) for rank in (0, 1)]
    facts = facts_of([passed("a", 0), failed("a", 1), passed("b", 0, 1), *skipped])
    live.job_ended("cell/suite", facts.tests, 1.26, None)
    assert lines == ["cell/suite: 1 failed, 1 passed, 1 skipped (1.3 s)"]


def test_a_job_without_tests_is_reported(live, lines):
    live.job_ended("cell/suite", Tests(), 0, None)
    assert lines == ["cell/suite: no test ran (0.0 s)"]


def test_a_job_error_is_printed_with_its_reason_and_remedy(live, lines):
    live.job_ended("cell/suite", Tests(), 1, JobError(kind="agent", what="It died.", why="a\n\nb", remedy="Do."))
    assert lines == ["cell/suite: It died. (1.0 s)", "    a", "    b", "    Do."]


def test_only_the_end_of_a_long_reason_is_printed(live, lines):
    live.job_ended("cell/suite", Tests(), 1, JobError(kind="agent", what="x", why="\n".join(map(str, range(40)))))
    assert lines[1] == "    …"
    assert lines[-1] == "    39"
    assert len(lines) == 14


@pytest.fixture
def quiet(lines):
    return RunListener(lines, "quiet")


@pytest.fixture
def verbose(lines):
    return RunListener(lines, "verbose")


def test_a_quiet_run_prints_only_problems(quiet, lines, make_spec):
    quiet.job_started(make_spec(), Tests())
    quiet.take("one/suite", PASSED)
    quiet.job_ended("one/suite", facts_of([PASSED]).tests, 1, None)
    assert lines == []
    quiet.take("two/suite", failed("t", 1, "no"))
    quiet.job_ended("two/suite", facts_of([failed("t", 1, "no")]).tests, 1, None)
    quiet.job_ended("three/suite", Tests(), 1, JobError(kind="agent", what="It died."))
    assert lines == [
        "two/suite: first failure: rank 1 failed in t: no",
        "two/suite: 1 failed (1.0 s)",
        "three/suite: It died. (1.0 s)",
    ]


def test_a_verbose_run_shows_each_request(verbose, lines, make_spec):
    spec = make_spec(paths=("suite",), world_size=4, pytest_args=("-k", "x"), environment={"B": "2", "A": "1"})
    verbose.job_started(spec, Tests())
    assert lines[0] == f"{spec.job_id}: attempt {spec.attempt} of run {spec.run_id}, seed {spec.agent.seed}"
    assert "    pytest: suite -k x" in lines
    assert "    ranks: 4 on 1 node, backend gloo, init method env" in lines
    assert "    environment: A=1 B=2" in lines
    assert any(line.startswith("    python: ") for line in lines)
    assert any(line.startswith("    limits: ") for line in lines)


def test_a_verbose_run_shows_the_evidence_of_every_failed_rank(verbose, lines):
    text = "\n".join(map(str, range(150)))
    for rank in (0, 1):
        ended = replace(failed("t", rank, "no"), text=text, stdout="\x1b[2Jprinted\n", stderr="warned\n")
        verbose.take("cell/suite", ended)
    assert lines.count("    [rank 0] 149") == lines.count("    [rank 1] 149") == 1
    assert "    [rank 0] 49" not in lines
    assert "    [rank 0] … 50 lines above" in lines
    index = lines.index("    [rank 1] captured stdout:")
    assert lines[index + 1 : index + 4] == [
        "    [rank 1] printed", "    [rank 1] captured stderr:", "    [rank 1] warned",
    ]  # fmt: skip
    assert lines[0] == "cell/suite: first failure: rank 0 failed in t: no"
    assert "cell/suite: rank 1 failed in t: no" in lines


@pytest.fixture
def now(monkeypatch):
    """A clock that tests set."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


LIMITS = TimeLimits(process_group=20, test=300, job=900, peer_grace=3)


def started(listener, make_spec, *nodeids):
    """Start a job, and return its id and tests."""
    spec, tests = make_spec(), Tests()
    spec = replace(spec, agent=replace(spec.agent, limits=LIMITS))
    listener.job_started(spec, tests)
    for nodeid in nodeids:
        tests.update(TestStarted(nodeid=nodeid))
    return spec.job_id, tests


def at(*ranks, frame="", is_waiting=False):
    return Location(ranks=ranks, frame=frame, is_waiting=is_waiting)


@pytest.mark.parametrize(
    ("ended", "locations", "text"),
    [
        ((0,), [at(1, frame="t.py:7 in f")], "rank 0 has ended; rank 1 is at t.py:7 in f"),
        ((0, 3), [at(1, 2, frame="t:7", is_waiting=True)], "ranks 0, 3 have ended; ranks 1, 2 are waiting at t:7"),
        ((), [at(0, is_waiting=True), at(1)], "rank 0 is waiting; rank 1 is running"),
        (
            (), [at(rank, frame=f"t.py:{rank}") for rank in range(6)],
            "rank 0 is at t.py:0; rank 1 is at t.py:1; rank 2 is at t.py:2; rank 3 is at t.py:3; 2 more places",
        ),
    ],
)  # fmt: skip
def test_a_slow_test_is_reported_with_the_locations_of_its_ranks(live, lines, ended, locations, text):
    live.take("a/s", TestSlow(nodeid="t.py::f", seconds=30.4, ended=ended, locations=tuple(locations)))
    assert lines == [f"a/s: slow: t.py::f has been running for 30 s: {text}"]


def test_a_log_has_a_summary_each_minute(lines, make_spec, now):
    live = RunListener(lines, began=0.0)
    job_id, tests = started(live, make_spec, "t")
    for record in (Collected(tests=("s", "t", "u")), PASSED, TestStarted(nodeid="u")):
        tests.update(record)
    seen = []
    for now[0] in map(float, range(0, 200, 10)):
        before = len(lines)
        live.report_progress()
        seen += [now[0] for line in lines[before:] if line.startswith("jobs: ")]
    assert seen == [60, 120, 180]
    assert f"jobs: 1 running; tests: 1 passed of 3; 1:00; {job_id}: u has been running for 60 s" in lines


def test_a_test_that_has_ended_or_restarted_is_not_slow(live, make_spec):
    job_id, tests = started(live, make_spec, "t", "u")
    for record in (SLOW, replace(SLOW, nodeid="u")):
        tests.update(record)
    assert job(live, job_id).has_slow_test
    tests.update(PASSED)
    assert job(live, job_id).has_slow_test
    tests.update(TestStarted(nodeid="u", number=2))
    assert not job(live, job_id).has_slow_test


def test_a_quiet_run_does_not_report_slow_tests(quiet, lines):
    quiet.take("a/s", SLOW)
    assert lines == []


def test_a_log_has_the_failure_rate_after_ten_seconds_and_then_less_often(live, lines, make_spec, now):
    job_id, _ = started(live, make_spec)
    del lines[:]
    seen = []
    for now[0] in map(float, range(200)):
        live.take(job_id, Repeated(nodeid="t", tally=RepetitionTally(runs=10), runs=1500, bad=3))
        before = len(lines)
        live.report_progress()
        seen += [now[0]] * (len(lines) - before)
    assert lines[0] == f"{job_id}: 3 of 1,500 runs failed (0.2 %)"
    assert seen[:5] == [10, 20, 30, 40, 50]
    assert seen[-1] - seen[-2] > 30


def test_failures_are_red_and_slow_tests_yellow(lines, make_spec):
    listener = RunListener(lines, paint=lambda text, color: f"<{color}>{text}")
    job_id, tests = started(listener, make_spec, "t")
    for record in (SLOW, PASSED, failed("u", 1, "no")):
        tests.update(record)
        listener.take(job_id, record)
    listener.job_ended(job_id, tests, 20.0, None)
    colors = [line.partition(">")[0] for line in lines[1:]]
    assert colors == ["<yellow", "<red", "<red"]


def job(listener, job_id):
    return next(job for job in listener.jobs if job.job_id == job_id)


def test_a_job_goes_from_state_to_state_and_holds_its_gpus_until_its_end(live, make_spec):
    job_id = make_spec().job_id
    live.expect([job_id])
    assert job(live, job_id).state == "waiting"
    live.set_state(job_id, "preparing", (0, 1))
    assert (job(live, job_id).state, job(live, job_id).gpus, job(live, job_id).seconds) == ("preparing", (0, 1), None)
    _, tests = started(live, make_spec)
    assert (job(live, job_id).state, job(live, job_id).gpus) == ("running", (0, 1))
    live.job_ended(job_id, tests, 61.5, None)
    assert (job(live, job_id).state, job(live, job_id).gpus, job(live, job_id).seconds) == ("done", (), 61.5)


def test_a_retried_job_starts_without_failures(live, make_spec):
    job_id, tests = started(live, make_spec)
    tests.update(failed("t"))
    live.job_ended(job_id, tests, 1.0, JobError(kind="agent", what="It died."))
    assert job(live, job_id).has_failed
    live.set_state(job_id, "waiting")
    assert not job(live, job_id).has_failed


def test_the_first_failure_of_the_run_is_kept(live):
    live.job_ended("cell/s", Tests(), 1.0, JobError(kind="interrupted", what="The run was interrupted."))
    for nodeid in ("t", "u"):
        live.take("cell/s", failed(nodeid, 1, "no"))
    assert live.first_failure == "cell/s: rank 1 failed in t: no"
