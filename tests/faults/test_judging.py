"""The driver of the faults sees what is wrong: a difference in the report, in time, and what a run leaves behind."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from declaration import Expectation, Fault, literal
from fault_run import SLACK, WARDEN, Case, Seen, differences

FAULT = Fault(
    name="example",
    path=Path("example.py"),
    world_size=2,
    test="test_fault",
    expected=Expectation(
        verdict=(("error", "crashed"),),
        leading=(1,),
        ranks=(frozenset({"failed"}), frozenset({"crashed"})),
        words=("SIGKILL",),
        output=("last words",),
    ),
    seconds=2,
)
JUDGED = Case(
    name="test_fault",
    verdict=("error", "crashed"),
    leading=1,
    ranks={0: "failed", 1: "crashed"},
    message="rank 1 was killed by SIGKILL",
    text="",
    output="last words",
)
INNOCENT = Case(
    name="test_after",
    verdict=("passed", ""),
    leading=None,
    ranks={0: "passed", 1: "passed"},
    message="",
    text="",
    output="",
)
SEEN = Seen(
    exit_code=1,
    seconds=1.5,
    importing=0.0,
    cases=(JUDGED, INNOCENT),
    collected=("test_fault", "test_after"),
    size=1000,
    left=(),
    output="",
    folder=Path(),
)

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "3609"], {})
    os._exit(0)
os.wait()
"""


def test_what_is_as_declared_is_right():
    assert differences(FAULT, SEEN) == []


def test_a_job_may_take_longer_by_the_time_of_its_import():
    assert differences(FAULT, replace(SEEN, seconds=2.4 + SLACK, importing=0.5)) == []
    assert differences(FAULT, replace(SEEN, seconds=2.6 + SLACK, importing=0.5)) != []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exit_code": 3}, "exit code 3, not 1"),
        ({"seconds": 2.1 + SLACK}, "more than 2 s"),
        ({"seconds": None}, "no record"),
        ({"size": 1 << 30}, "1024 MiB"),
        ({"left": ("container x",)}, "left behind: container x"),
        ({"cases": (JUDGED,)}, "test_after: not in the report"),
        ({"cases": (INNOCENT,)}, "test_fault: not in the report"),
        ({"cases": (replace(JUDGED, verdict=("failure", "failed")), INNOCENT)}, "failure failed, not error crashed"),
        ({"cases": (replace(JUDGED, leading=0), INNOCENT)}, "led by rank 0, not 1"),
        ({"cases": (replace(JUDGED, ranks={0: "aborted", 1: "crashed"}), INNOCENT)}, "rank 0 aborted, not failed"),
        ({"cases": (replace(JUDGED, ranks={1: "crashed"}), INNOCENT)}, "outcomes of ranks [1], not of 2 ranks"),
        ({"cases": (replace(JUDGED, message="it died"), INNOCENT)}, "the message lacks 'SIGKILL': it died"),
        ({"cases": (replace(JUDGED, output=""), INNOCENT)}, "the output lacks 'last words'"),
        ({"cases": (JUDGED, replace(INNOCENT, ranks={0: "passed", 1: "missing"}))}, "rank 1 missing, not passed"),
        ({"cases": (JUDGED, INNOCENT, replace(JUDGED, name="job"))}, "job: error crashed, not passed"),
    ],
)
def test_each_difference_is_reported(change, words):
    found = differences(FAULT, replace(SEEN, **change))
    assert any(words in line for line in found), found


def test_an_open_answer_needs_a_reason():
    declared = {"verdict": ("error", "crashed"), "leading": [0, 1], "ranks": ["crashed", "crashed"]}
    with pytest.raises(ValueError, match="several right answers need a reason"):
        Expectation.read(declared, 2)
    assert Expectation.read({**declared, "undetermined": "both at once"}, 2).leading == (0, 1)


def test_a_declaration_is_read_without_running_its_file(tmp_path):
    source = tmp_path / "hangs.py"
    source.write_text("import nowhere\nFAULT = {'world_size': 2}\nwhile True: pass\n")
    assert literal(source) == {"world_size": 2}


def test_a_daemon_that_hides_is_found_and_ended(tmp_path):
    report = tmp_path / "report.json"
    subprocess.run([sys.executable, WARDEN, report, "--", sys.executable, "-c", DAEMON], check=True)
    result = json.loads(report.read_text())
    assert result["status"] == 0
    [left] = result["left"]
    assert "sleep 3609" in left
    assert not Path("/proc", left.partition(":")[0]).exists()


def test_a_command_that_leaves_nothing_is_reported_as_such(tmp_path):
    report = tmp_path / "report.json"
    subprocess.run([sys.executable, WARDEN, report, "--", sys.executable, "-c", "raise SystemExit(7)"], check=True)
    assert json.loads(report.read_text()) == {"status": 7, "left": []}
