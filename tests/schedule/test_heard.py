"""What was heard of a job whose own files never came home."""

import errno
import json
from contextlib import closing

import pytest
from junitparser import JUnitXml

from allranks.engine.ownership import own_run
from allranks.harness.events import JOURNAL, read_events
from allranks.schedule.heard import Heard, complete_dead_runs

pytestmark = pytest.mark.usefixtures("locks")


def arrived(rank, name, outcome="passed", message=""):
    nodeid = f"suite/test_a.py::{name}"
    return {"event": "arrived", "at": 1.0, "nodeid": nodeid, "rank": rank, "outcome": outcome, "message": message}


@pytest.fixture
def attempt(tmp_path):
    folder = tmp_path / "run-1" / "cells" / "gloo-w2-g0-env" / "tiny" / "attempt-1"
    folder.mkdir(parents=True)
    manifest = {"cells": {"gloo-w2-g0-env": {"world_size": 2}}}
    (tmp_path / "run-1" / "run.json").write_text(json.dumps(manifest))
    with closing(Heard(folder / JOURNAL)) as heard:
        for rank in (0, 1):
            heard.write(arrived(rank, "test_good"))
        heard.write(arrived(1, "test_bad", "failed", "assert 1 == 2"))
    return folder


def cases(path):
    found = [case for suite in JUnitXml.fromfile(path) for case in suite]
    return {case.name: [(type(each).__name__, each.message) for each in case.result] for case in found}


def test_each_event_is_there_as_soon_as_it_is_heard(tmp_path):
    with closing(Heard(tmp_path / JOURNAL)) as heard:
        heard.write(arrived(0, "test_good"))
        assert read_events(tmp_path / JOURNAL) == [arrived(0, "test_good")]


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path):
    with closing(Heard(tmp_path / "gone" / JOURNAL)) as heard:
        heard.write(arrived(0, "test_good"))


def test_a_part_is_not_left_where_it_would_pass_for_the_whole(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    with closing(Heard(tmp_path / JOURNAL)) as heard:
        heard.write(arrived(0, "test_good"))
        monkeypatch.setattr("allranks.schedule.heard.write_all", full)
        heard.write(arrived(1, "test_good"))
    assert not (tmp_path / JOURNAL).exists()


def test_events_that_make_no_sense_keep_nobody_from_merging(attempt, tmp_path):
    (attempt / "events-0.jsonl").write_text('{"event": "phase", "nodeid": ["x"]}\n{"event": "phase", "nodeid": "x"}\n')
    complete_dead_runs(tmp_path)


def test_what_a_dead_run_heard_becomes_results_of_its_ranks(attempt, tmp_path):
    complete_dead_runs(tmp_path)
    assert cases(attempt / "rank-0.xml") == {"test_good": []}
    assert cases(attempt / "rank-1.xml") == {"test_good": [], "test_bad": [("Failure", "assert 1 == 2")]}


def test_a_living_run_is_left_alone(attempt, tmp_path):
    with own_run("run-1"):
        complete_dead_runs(tmp_path)
    assert [path.name for path in attempt.iterdir()] == [JOURNAL]


def test_an_attempt_that_has_its_record_is_left_alone(attempt, tmp_path):
    (attempt / "job.json").write_text(json.dumps({}))
    complete_dead_runs(tmp_path)
    assert not (attempt / "rank-0.xml").exists()


def test_what_a_rank_has_written_itself_counts_for_more_than_what_was_heard_of_it(attempt, tmp_path):
    nodeid = "suite/test_a.py::test_good"
    own = {"event": "phase", "at": 1.0, "nodeid": nodeid, "rank": 0, "when": "call", "duration": 1.0}
    text = {"outcome": "failed", "message": "mine", "text": "all of it"}
    (attempt / "events-0.jsonl").write_text(json.dumps({**own, **text}) + "\n")
    complete_dead_runs(tmp_path)
    assert cases(attempt / "rank-0.xml") == {"test_good": [("Failure", "mine")]}


def test_a_rank_that_was_never_heard_is_known_to_be_lacking(attempt, tmp_path):
    (attempt / JOURNAL).write_text(json.dumps(arrived(0, "test_good")) + "\n")
    complete_dead_runs(tmp_path)
    [suite] = JUnitXml.fromfile(attempt / "rank-0.xml")
    assert {each.name: each.value for each in suite.properties()}["allranks.world_size"] == "2"
