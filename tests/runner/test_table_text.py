"""The table as text, in terminals of any size and with any names."""

import io
import time
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from allranks.protocol.records import Location, TestSlow
from allranks.runner.listener import RunListener
from allranks.runner.progress import STATES, JobProgress, RunningTest, Tests
from allranks.runner.terminal import render


def counted(*running, passed=0, skipped=0, failed=0, **more):
    """Tests of a job; running ones have the seconds since their start."""
    began = {nodeid: RunningTest(nodeid, time.monotonic() - seconds) for nodeid, seconds in running}
    return Tests(counts=Counter(failed=failed, passed=passed, skipped=skipped), running=began, **more)


BAD = counted(passed=30, skipped=5, failed=2, collected=351, first_failed="suites/test_a.py::TestB::test_c[x]")
job = partial(JobProgress, job_id="gloo-w2-g0-env/collectives", gpus=(0, 1, 2, 6))
DONE = job(state="done", tests=BAD, took=3671.5)


HANGS = "suites/test_a.py::TestB::test_hang"
SLOW = TestSlow(
    nodeid=HANGS, seconds=60.0, ended=(1,), locations=(Location(ranks=(0,), frame="a.py:7 in f", is_waiting=True),)
)


def hanging(slow=SLOW, **more):
    tests = counted((HANGS, 65.5), passed=1, collected=9)
    tests.running[HANGS].slow = slow
    return job(state="running", tests=tests, **more)


def run_of(*jobs, failure=""):
    return RunListener(print, first_failure=failure, _jobs={job.job_id: job for job in jobs})


def drawn(listener, width, height=24):
    """The lines that a terminal would show, without colors."""
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, markup=False, emoji=False, highlight=False)
    console.print(render(listener, width, height))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_wide_terminal_shows_everything_of_a_job():
    title, line, summary = drawn(run_of(DONE), 120)
    assert title.split() == ["job", "state", "tests", "failed", "GPUs", "time", "now"]
    assert line.split() == [
        "gloo-w2-g0-env/collectives", "done", "37/351", "2", "0-2,6", "1:01:11", "test_c[x]",
    ]  # fmt: skip
    assert summary == "jobs: 1 done; 1 failed; tests: 2 failed, 30 passed, 5 skipped of 351; 0:00"


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (72, ["gloo-w2-g0-env/collectives", "done", "37/351", "2", "0-2,6", "1:01:11"]),
        (60, ["gloo-w2-g0-env/collectives", "done", "37/351", "2", "1:01:11"]),
        (43, ["gloo-w2-g0-env/collectives", "done", "37/351"]),
        (33, ["gloo-w2-g0-env/collectives", "done"]),
        (12, ["gloo-w2-g0-…"]),
    ],
)
def test_a_narrow_terminal_omits_the_least_important_columns(width, words):
    assert drawn(run_of(DONE), width)[1].split() == words


def test_empty_columns_are_omitted():
    assert drawn(run_of(JobProgress(job_id="a/b")), 30)[0].split() == ["job", "state"]


def test_a_running_job_shows_its_test_and_the_duration():
    assert drawn(run_of(hanging(slow=None)), 120)[1].endswith("  1:05 test_hang")
    two = job(state="running", tests=counted(("a::test_b", 3.5), ("a::test_a", 4.5)))
    assert drawn(run_of(two), 120)[1].endswith("  0:04 test_a and 1 more")


def test_a_slow_test_is_marked_and_shows_where_its_ranks_are():
    assert drawn(run_of(hanging()), 120)[1].endswith(
        "  slow: 1:05 test_hang: rank 1 has ended; rank 0 is waiting at a.py:7 …"
    )


def test_the_state_may_be_the_queue_status_or_the_failure_rate():
    for fields in ({"queue_status": "queued (Resources)"}, {"rate": "3 of 1,500 runs failed (0.2 %)"}):
        assert next(iter(fields.values())) in drawn(run_of(job(state="running", **fields)), 120)[1]


def test_a_job_error_is_shown_instead_of_the_first_failed_test():
    row = job(state="done", tests=BAD, error="The image cannot be made.")
    assert drawn(run_of(row), 120)[1].endswith("The image cannot be made.")


def test_the_first_failure_has_one_line():
    found = drawn(run_of(DONE, failure="rank 1 failed in t: " + "x" * 500), 60)
    assert found[3].startswith("rank 1 failed in t: xx")
    assert found[3].endswith("x…")
    assert len(found) == 4


def test_a_short_terminal_prefers_slow_jobs_then_running_then_failed_ones():
    jobs = [
        JobProgress(job_id="a", state="done"), JobProgress(job_id="b"), JobProgress(job_id="c", error="It died."),
        JobProgress(job_id="d", state="preparing"), JobProgress(job_id="e", state="running"),
        hanging(job_id="f"),
    ]  # fmt: skip
    shown = [[line[0] for line in drawn(run_of(*jobs), 30, room + 3)[1:-1]] for room in range(1, 7)]
    assert shown == [list(each) for each in ("f", "ef", "cef", "cdef", "bcdef", "abcdef")]


@pytest.mark.parametrize("name", ["[bold]a[/bold]/s", "gloo[/]/s", "a[red]", ":smile:/s", "\\[x]"])
def test_names_with_markup_are_shown_as_they_are(name):
    row = JobProgress(job_id=name, state="done", tests=counted(failed=1, first_failed=f"f.py::test[{name}]"))
    found = drawn(run_of(row, failure=f"{name}: bad"), 120)
    assert found[1].startswith(name)
    assert f"test[{name}]" in found[1]
    assert found[3] == f"{name}: bad"


def test_control_sequences_are_escaped():
    row = JobProgress(job_id="a\x1b[2Jb\nc/s", state="done", error="\x07no\r\x1b]0;x\x07")
    assert "\x1b" not in "".join(drawn(run_of(row, failure="\x1b[31mred\x1b[0m"), 100))


NAMES = st.text(max_size=60)
COUNTS = st.integers(0, 10**6)
JOBS = st.builds(
    JobProgress,
    job_id=NAMES,
    state=st.sampled_from(STATES),
    rate=NAMES,
    tests=st.builds(
        counted,
        st.tuples(NAMES, COUNTS),
        passed=COUNTS,
        failed=COUNTS,
        collected=st.none() | COUNTS,
        first_failed=NAMES,
    ),
    error=NAMES,
    gpus=st.lists(st.integers(0, 15), unique=True).map(tuple),
    took=st.none() | COUNTS,
)


@given(st.lists(JOBS, max_size=30), NAMES, st.integers(1, 160), st.integers(1, 40))
def test_a_table_fits_into_its_terminal(jobs, failure, width, height):
    found = drawn(run_of(*jobs, failure=failure), width, height)
    assert all(cell_len(line) <= width for line in found)
    assert len(found) <= max(1, height - 1)
