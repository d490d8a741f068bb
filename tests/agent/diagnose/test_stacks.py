import os
import signal

import pytest
from stuck_process import stuck_process

from allranks.agent.diagnose import stacks
from allranks.agent.diagnose.stacks import (
    STACKS_SIGNAL,
    StackFile,
    dump_stacks,
    request_stacks,
    wait_for_stacks,
)
from allranks.agent.stacks import Stacks


def dump(*frames, thread="Current thread 0x00007f (most recent call first):"):
    return "\n".join([thread, *(f'  File "{file}", line {line} in {name}' for file, line, name in frames), ""])


USER = ("/home/me/suite/test_a.py", 12, "test_a")
PYTEST = ("/env/lib/python3.11/site-packages/_pytest/python.py", 166, "pytest_pyfunc_call")


def test_a_stack_file_returns_later_additions(tmp_path):
    path = tmp_path / "rank-0.stacks.txt"
    path.write_text("of an earlier gang")
    file = StackFile(path)
    assert file.added() == ""
    with path.open("ab") as more:
        more.write(b", and new \xff")
    assert file.added() == ", and new \ufffd"


def test_a_missing_stack_file_is_empty(tmp_path):
    assert StackFile(tmp_path / "none").added() == ""


def test_waiting_for_a_silent_rank_times_out(tmp_path):
    assert wait_for_stacks({0: StackFile(tmp_path / "none")}, {0: os.getpid()}) == {0: ""}


def test_stacks_that_are_written_in_parts_are_waited_for(tmp_path):
    path = tmp_path / "rank-0.stacks.txt"
    path.write_text("")
    whole = dump(("/home/me/suite/conftest.py", 1, "<module>"), USER, ("<frozen runpy>", 88, "_run_module_as_main"))

    class InParts(StackFile):
        reads = 0

        def added(self):
            self.reads += 1
            if self.reads % 5 == 0 or self.reads == 1:  # four of five reads find nothing new
                path.write_text(whole[: 20 * self.reads])
            return super().added()

    assert wait_for_stacks({0: InParts(path)}, {0: os.getpid()}) == {0: whole}


@pytest.fixture
def stacks_of(tmp_path):
    """Returns the stacks of a process that is stuck in some manner, and the text of its stack file."""

    def dump_one(manner="answers"):
        path = tmp_path / "rank-0.stacks.txt"
        with stuck_process(path, STACKS_SIGNAL, manner) as pid:
            stopped = {0} if manner == "is stopped" else frozenset()
            file = StackFile(path)
            if stopped:
                os.kill(pid, signal.SIGSTOP)
            else:
                request_stacks(pid)
            [stacks] = dump_stacks({0: pid}, stopped, {0: file}).values()
        return stacks, path.read_text()

    return dump_one


def test_the_main_thread_of_a_stopped_process_writes_the_stacks(tmp_path):
    path = tmp_path / "rank-0.stacks.txt"
    with stuck_process(path, STACKS_SIGNAL, "has threads") as pid:
        for _ in range(20):
            file = StackFile(path)
            os.kill(pid, signal.SIGSTOP)
            request_stacks(pid)
            os.kill(pid, signal.SIGCONT)
            assert Stacks(wait_for_stacks({0: file}, {0: pid})[0]).innermost.endswith(" in waits_forever")


def test_a_rank_has_python_and_native_stacks(stacks_of):
    stacks, _ = stacks_of()
    own, outside = stacks.text.split("Seen from outside by py-spy")
    assert "in waits_forever" in own
    assert "in waits_forever" in outside
    assert "(libc.so.6)" in outside


@pytest.mark.parametrize("manner", ["blocks", "is stopped"])
def test_py_spy_reads_the_stacks_of_a_rank_that_does_not_respond(stacks_of, manner):
    stacks, _ = stacks_of(manner)
    assert stacks.innermost.endswith(" in waits_forever")


def test_returned_stacks_are_also_in_the_file(stacks_of):
    stacks, file = stacks_of()
    assert file == stacks.text


def test_without_py_spy_there_are_only_the_ranks_own_stacks(stacks_of, monkeypatch):
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    found, _ = stacks_of()
    assert found.innermost.endswith(" in waits_forever")
    assert "py-spy" not in found.text


def test_an_error_of_py_spy_follows_the_ranks_own_stacks(stacks_of, monkeypatch):
    monkeypatch.setattr(stacks, "find_py_spy", lambda: "/bin/false")
    found, _ = stacks_of()
    assert found.innermost.endswith(" in waits_forever")
    assert "Seen from outside by py-spy: py-spy failed" in found.text
