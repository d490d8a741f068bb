"""Multi-process tests under torch's own runner: what is run, what counts, and when it ends."""

import signal
import threading
import time
from dataclasses import replace

import pytest
from agent_run import CONFIG

from allranks.agent.job_end import JobEnd, StopRequestedError
from allranks.agent.program import ItemOptions, Program
from allranks.agent.supervisor.test_loop import SupervisedJob
from allranks.plugins.stress.agent.baseline_run import LOG, has_failed, run_baseline, torch_command
from allranks.plugins.stress.agent.settings import Stress
from allranks.protocol.config import Folders, TimeLimit

SCRIPT = """
import os
import pathlib
import signal
import sys
import time
import unittest

COUNT = pathlib.Path("count")


class TestX(unittest.TestCase):
    def test_y(self):
        number = int(COUNT.read_text() if COUNT.exists() else 0) + 1
        COUNT.write_text(str(number))
        {body}


if __name__ == "__main__":
    unittest.main()
"""
LIMIT = TimeLimit(value=30, setting="limits.test")
LAUNCHER = ItemOptions(gang=("test",), has_process_group=False, limit=LIMIT, launches=True, is_script=True)
NODEID = "test_x.py::TestX::test_y"


class FakeRepetitions:
    """The tests that the job has repeated, and what is reported of them."""

    def __init__(self, runs):
        self.runs = runs
        self.reported = {}

    def ran(self):
        return list(self.runs)

    def runs_of(self, nodeid):
        return self.runs[nodeid]

    def set_baseline(self, nodeid, runs, bad, command):
        self.reported[nodeid] = (runs, bad, command)


@pytest.fixture
def baseline(tmp_path):
    """Repeat one test with this body, and the test of a rank; what is reported of both."""
    for name in ("code", "results", "shared"):
        (tmp_path / name).mkdir()
    folders = Folders(code=tmp_path / "code", results=tmp_path / "results", shared=tmp_path / "shared")
    end = JobEnd()

    def run(body, *, limit=30.0, terms=LAUNCHER, **stress):
        (folders.code / "test_x.py").write_text(SCRIPT.format(body=body))
        repetitions = FakeRepetitions({NODEID: 4, "test_r.py::test_r": 4})
        ranks = replace(LAUNCHER, launches=False)
        program = Program(
            tests=tuple(repetitions.runs), options=(replace(terms, limit=replace(LIMIT, value=limit)), ranks)
        )
        job = SupervisedJob(config=CONFIG, folders=folders, journal=None, end=end)
        run_baseline(repetitions, Stress(**{"baseline": True, **stress}), program, job)
        assert repetitions.reported.pop("test_r.py::test_r", (0, 0, ""))[:2] == (0, 0)
        return repetitions.reported.get(NODEID)

    run.end = end
    run.folders = folders
    yield run
    end.close()


def test_it_is_repeated_as_often_as_here_and_the_first_failure_is_kept(baseline):
    runs, bad, command = baseline("assert number % 2, f'the number {number}'", count=4)
    assert (runs, bad, command) == (4, 2, "python test_x.py TestX.test_y")
    log = (baseline.folders.results / LOG).read_text()
    assert log.count("the number 2") == 1
    assert "the number 4" not in log
    assert [path.name for path in baseline.folders.results.iterdir()] == [LOG]


def test_without_a_count_it_is_repeated_as_often_as_it_was_here_or_for_as_long(baseline):
    assert baseline("pass")[:2] == (4, 0)
    assert baseline("pass", seconds=1e-9)[:2] == (0, 0)


def test_a_process_that_dies_has_gone_wrong_and_so_has_one_that_ends_without_a_word(baseline):
    body = "os.kill(os.getpid(), signal.SIGSEGV) if number == 2 else os._exit(3) if number == 3 else None"
    assert baseline(body, count=4)[:2] == (4, 2)


def test_one_that_does_not_end_is_killed_and_has_gone_wrong(baseline, monkeypatch):
    monkeypatch.setattr("allranks.plugins.stress.agent.baseline_run._START", 0.0)
    assert baseline("time.sleep(600)", limit=2.0, count=1)[:2] == (1, 1)


@pytest.mark.parametrize(
    ("body", "report"),
    [
        ("self.skipTest('not here')", "it is skipped there"),
        ("sys.stderr.write('no such device\\n'); os._exit(3)", "it does not run there: no such device"),
    ],
)
def test_what_says_nothing_of_the_test_is_not_counted(baseline, body, report):
    assert baseline(body, count=9) == (0, 0, report)


def test_a_job_that_is_ended_ends_the_process_and_tells_what_was_done(baseline):
    def hang_up():
        while not (baseline.folders.code / "count").exists():
            time.sleep(0.01)
        baseline.end.request_stop()

    thread = threading.Thread(target=hang_up)
    thread.start()
    with pytest.raises(StopRequestedError):
        baseline("time.sleep(600)", count=1)
    thread.join()


def test_other_jobs_repeat_nothing(baseline):
    assert baseline("pass", baseline=False) is None


def test_a_file_that_is_no_script_is_run_by_pytest():
    terms = replace(LAUNCHER, is_script=False)
    assert torch_command(NODEID, terms) == ["-m", "pytest", "-q", "-p", "no:cacheprovider", NODEID]
    assert torch_command(NODEID, LAUNCHER) == ["test_x.py", "TestX.test_y"]


@pytest.mark.parametrize(
    ("status", "text", "is_bad"),
    [
        (0, "Ran 1 test in 0.1s\n\nOK", False),
        (1, "Ran 1 test in 0.1s\n\nFAILED (failures=1)", True),
        (0, "1 passed in 0.1s", False),
        (1, "===== 1 failed, 2 warnings in 0.1s =====", True),
        (0, "Ran 1 test in 0.1s\n\nOK (skipped=1)", None),
        (0, "1 skipped in 0.1s", None),
        (5, "no tests ran in 0.1s", None),
        (1, "Ran 0 tests in 0.0s", None),
        (2, "ImportError: no module", None),
        (-signal.SIGSEGV, "", True),
        (None, "", True),
    ],
)
def test_only_a_process_that_has_run_the_test_says_how_it_went(status, text, is_bad):
    assert has_failed(status, text) is is_bad
