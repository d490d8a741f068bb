"""``allranks bisect`` over cells: how often it repeats a test, and what it answers."""

import json
import os

import pytest

from allranks.errors import ExitCode

NODEID = "suite/test_tiny.py::test_y"
CELLS = ("gloo-w1-g0-env", "gloo-w2-g0-env", "nccl-w2-g2-env")


@pytest.fixture
def bisect(allranks, fake_runs, monkeypatch):
    """Run the command on cells with these rates; its exit code, outputs, and the runs that it began."""

    def run(rate_of, *arguments, **more):
        runs = fake_runs(rate_of=lambda _, job: rate_of(job.cell), **more)
        monkeypatch.setattr("allranks.runner.run_jobs.run", runs)
        return *allranks("bisect", NODEID, "--suite", "tiny", *arguments), runs

    return run


def of_world(cell):
    return 0.5 if cell.world_size == 2 else 0.0


def test_it_says_which_axis_the_failures_follow(bisect):
    code, out, err, runs = bisect(of_world)
    assert (code, err) == (ExitCode.OK, "")
    assert f"{NODEID} fails at world_size 2 (" in out
    assert "never at 1 (0 of " in out
    assert out.endswith("exit code 0: the axis or the commit is found\n")
    assert runs.asked[0][0] == [f"{cell}/tiny" for cell in CELLS]
    assert "a line of the run" not in out


def test_a_low_rate_is_repeated_until_chance_does_not_explain_it(bisect):
    _, _, _, runs = bisect(lambda cell: 0.04 if cell.world_size == 2 else 0.0)
    assert runs.counts[:4] == [10, 10, 20, 40]
    assert len(runs.counts) > 4


def test_a_high_rate_is_known_after_ten_repetitions(bisect):
    _, _, _, runs = bisect(lambda cell: 1.0 if cell.world_size == 2 else 0.0)
    assert runs.counts == [10]


def test_a_rate_that_is_known_is_not_repeated_further(bisect):
    """A cell that fails each time says no more, while one that seldom fails still may."""
    _, _, _, runs = bisect(lambda cell: 1.0 if cell.world_size == 2 else 0.9)
    assert runs.counts == [10, 10, 20]
    assert runs.asked[-1][0] == [f"{CELLS[0]}/tiny"]


def test_a_test_that_never_fails_is_no_answer(bisect):
    code, out, _, runs = bisect(lambda _: 0.0, "--most", "100", "--confidence", "95")
    assert code == ExitCode.TESTS_FAILED
    assert "never failed in 100 repetitions per cell: a rate of 3 % or more would have shown" in out
    assert sum(runs.counts) == 100


def test_a_test_that_fails_everywhere_follows_no_axis(bisect):
    code, out, _, _ = bisect(lambda _: 1.0)
    assert code == ExitCode.TESTS_FAILED
    assert "fails 60 of 60 times in 3 cells: no axis decides" in out


def test_a_cell_that_cannot_run_it_is_named_and_left_out(bisect):
    code, out, _, runs = bisect(lambda cell: "skipped" if cell.backend == "nccl" else of_world(cell), "--json")
    report = json.loads(out)
    assert (code, report["exit_code"], report["test"]) == (0, 0, NODEID)
    assert report["deciding"][0] == {
        "axis": "world_size",
        "also": [],
        "predicate": "world_size >= 2",
        "confidence": report["deciding"][0]["confidence"],
    }
    assert report["cells"][2] == {"cell": CELLS[2], "bad": 0, "runs": 0, "why": "skipped: no GPU"}
    assert [len(jobs) for jobs, _ in runs.asked][1:] == [2] * (len(runs.asked) - 1)


@pytest.mark.parametrize(
    ("rate", "runs_end", "code", "words"),
    [
        ("skipped", ExitCode.NOTHING_RAN, ExitCode.NOTHING_RAN, "did not run in any cell"),
        ("It cannot be collected.", ExitCode.TESTS_FAILED, ExitCode.USAGE, "gloo-w1-g0-env: It cannot be collected."),
        ("The daemon is gone.", ExitCode.INFRASTRUCTURE, ExitCode.INFRASTRUCTURE, "The daemon is gone."),
    ],
)
def test_a_test_that_runs_nowhere_ends_with_the_reason(bisect, rate, runs_end, code, words):
    got, out, err, runs = bisect(lambda _: rate, code=runs_end)
    assert got == code
    assert words in out + err
    assert len(runs.asked) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gloo-w1"], "only one cell is selected: gloo-w1-g0-env"),
        (["--confidence", "100"], "'100' is not a confidence"),
        (["--confidence", "x"], "'x' is not a confidence"),
        (["--most", "0"], "'0' is not a whole number from 1 to 1000000"),
        (["--suite", "other"], "The test is in several suites: tiny, other"),
        (["--git", "HEAD"], "3 cells are selected, but --git repeats the test in only one"),
        (["--git", "HEAD", "gloo-w1"], "is not in a readable git repository"),
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_refused(bisect, arguments, words):
    code, _, err, runs = bisect(of_world, *arguments)
    assert (code, runs.asked) == (ExitCode.USAGE, [])
    assert words in err


def test_several_tests_are_refused_by_name(bisect):
    code, _, err, _ = bisect(of_world, names=("a.py::x", "a.py::y"))
    assert code == ExitCode.USAGE
    assert "2 tests are selected: a.py::x, a.py::y" in err


def test_an_interrupted_run_ends_it(bisect):
    code, _, _, runs = bisect(of_world, code=ExitCode.INTERRUPTED)
    assert code == ExitCode.INTERRUPTED
    assert len(runs.asked) == 1


def test_a_run_named_by_the_environment_is_not_shared_by_all_rounds(bisect, monkeypatch):
    monkeypatch.setitem(os.environ, "ALLRANKS_RUN_ID", "mine")
    _, _, _, runs = bisect(lambda _: 0.0, "--most", "20")
    names = {options.run_id for _, options in runs.asked}
    assert len(names) == 2
    assert "mine" not in names
