"""``allranks history``: a test over runs and cells, and what the newest run changed."""

import json
from pathlib import Path

import pytest

from allranks.plugins.history.recorder import HistoryRecorder
from allranks.report.judged import CellSuite
from allranks.report.results import TestVerdict, Verdict, VerdictKind, VerdictRule

TEST = "tests/test_x.py::test_y"
OTHER = "tests/test_x.py::test_z"


@pytest.fixture
def history(tmp_path) -> Path:
    """Four runs of one test: in two cells, one of which was not run in the second."""
    path = tmp_path / "history.sqlite"
    for number, letters in enumerate((("P", "P"), ("P", None), ("F", "P"), ("F", "P"))):
        recorder = HistoryRecorder(path)
        for cell, letter in zip(("gloo-w2", "gloo-w4"), letters, strict=True):
            if letter:
                recorder(job(cell, letter, 1e9 + number * 86400))
        assert not recorder.record(f"r{number}").problem
    return path


def job(cell, letter, started):
    kind = VerdictKind.PASSED if letter == "P" else VerdictKind.FAILURE
    verdict = Verdict(kind=kind, rule=VerdictRule.PASSED if letter == "P" else VerdictRule.PRIMARY_FAILURE)
    good = Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED)
    tests = [
        TestVerdict(nodeid=nodeid, classname="", name="", verdict=item)
        for nodeid, item in ((TEST, verdict), (OTHER, good))
    ]
    return CellSuite(cell=cell, suite="s", tests=tuple(tests), started=started)


def test_a_test_is_shown_over_runs_and_cells(allranks, history):
    code, out, _ = allranks("history", TEST, "--history", str(history))
    assert code == 0
    assert out.startswith(
        "4 runs, oldest first: r0 (2001-09-09T01:46:40+00:00) to r3 (2001-09-12T01:46:40+00:00)\n\n"
        f"{TEST} (s)\n"
        "  gloo-w2  PPFF  failing since 2001-09-11 (run r2), 2 of 4\n"
        "  gloo-w4  P.PP\n"
    )


def test_a_test_is_an_object_for_programs(allranks, history):
    code, out, _ = allranks("history", "test_y", "--json", "--history", str(history), "--runs", "2")
    output = json.loads(out)
    assert (code, output["schema"], output["file"]) == (0, 1, str(history))
    assert output["runs"][0] == {"id": "r2", "started": "2001-09-11T01:46:40+00:00"}
    assert output["tests"][0] == {
        "cell": "gloo-w2", "suite": "s", "test": TEST, "outcomes": ["F", "F"], "ranks": [None, None],
        "trend": "failing", "text": "failing since 2001-09-11 (run r2), 2 of 4",
    }  # fmt: skip


def test_without_a_test_the_newest_run_is_shown(allranks, history):
    code, out, _ = allranks("history", "--history", str(history))
    assert code == 0
    assert "4 runs, r0 (2001-09-09" in out
    assert f"2 tests in 2 cells, {history.stat().st_size / 1e6:.1f} MB\n" in out
    assert "History: 1 failing for longer; 4 runs recorded." in out
    output = json.loads(allranks("history", "--history", str(history), "--json")[1])
    assert output["size"] == history.stat().st_size
    assert output["counts"] == {"tests": 2, "cells": 2}
    assert [test["trend"] for test in output["newest"]] == ["failing"]


def test_the_file_is_that_of_the_matrix(allranks, history, repository):
    code, _, err = allranks("history")
    assert (code, "There is no history" in err) == (2, True)
    matrix = repository / "matrix.toml"
    history.rename(repository / ".allranks-history.sqlite")
    matrix.write_text(matrix.read_text() + "\n[history]\n")
    assert allranks("history", TEST)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No test in the history has 'nothing' in its id"),
        (["--history", "none.sqlite"], "none.sqlite cannot be read as a history: it does not exist"),
        (["--history", __file__], "cannot be read as a history: it is not a history"),
    ],
)
def test_what_cannot_be_shown_is_one_error(allranks, history, arguments, message):
    given = arguments if "--history" in arguments else [*arguments, "--history", str(history)]
    code, out, err = allranks("history", *given)
    assert (code, out) == (2, "")
    assert message in err
