import sys
from pathlib import Path

import pytest
from programs import write_python_program

from allranks.agent.diagnose.stacks import NATIVE, PySpyDump, find_py_spy, run_py_spy


@pytest.fixture
def program(tmp_path):
    """Writes a Python program that is run instead of py-spy."""

    def make(body):
        path = tmp_path / "py-spy"
        write_python_program(path, f"import sys, time\n{body}\n")
        return str(path)

    return make


def test_py_spy_is_found_on_path(program, monkeypatch):
    path = program("")
    monkeypatch.setenv("PATH", str(Path(path).parent))
    assert find_py_spy() == path


def test_py_spy_is_found_next_to_the_interpreter(program, monkeypatch, tmp_path):
    path = program("")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_py_spy() == path


def test_py_spy_may_be_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_py_spy() is None


THREADS = """
import json
def frame(name, line, file="/suite/test_a.py"):
    return {"name": name, "line": line, "filename": file}
def thread(pid, name, *frames):
    return {"os_thread_id": pid, "thread_id": 255, "thread_name": name, "frames": frames}
print(json.dumps([
    thread(7, "MainThread", frame("wait", 0, "/lib/libtorch.so"), frame("x" * 5000, 0), frame("test_a", 3)),
    thread(8, None, frame("other", 9)),
]))
"""


def test_threads_have_the_format_of_faulthandler_with_the_main_thread_last(program):
    stacks = run_py_spy(program(THREADS), {0: 7}, NATIVE)[0].stacks
    other, _, main = stacks.partition("Current thread 0x")
    assert 'Thread 0x00000000000000ff (most recent call first):\n  File "/suite/test_a.py", line 9 in other\n' in other
    assert main.splitlines()[1] == "  wait (libtorch.so)"
    assert main.splitlines()[3] == '  File "/suite/test_a.py", line 3 in test_a'


def test_a_long_name_is_shortened(program):
    stacks = run_py_spy(program(THREADS), {0: 7}, NATIVE)[0].stacks
    assert max(map(len, stacks.splitlines())) < 250


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            "sys.exit('Error: Permission Denied\\n\\nStack backtrace:\\n 0: x')",
            "py-spy failed: Error: Permission Denied",
        ),
        ("print('no json')", "py-spy returned invalid output"),
        ("print('[{}]')", "py-spy returned invalid output"),
        ("time.sleep(600)", "py-spy timed out"),
    ],
)
def test_errors_are_reported_in_one_line(program, body, error):
    assert run_py_spy(program(body), {3: 7}, NATIVE, timeout=0.5) == {3: PySpyDump(error=error)}


def test_a_program_that_cannot_be_started_is_reported(tmp_path):
    [dump] = run_py_spy(str(tmp_path), {0: 7}, NATIVE).values()
    assert dump.error.startswith("py-spy could not be started")


def test_a_process_that_has_ended_has_no_stacks():
    [dump] = run_py_spy(find_py_spy(), {0: 2**22 + 1}, NATIVE).values()
    assert dump.error.startswith("py-spy failed: ")
