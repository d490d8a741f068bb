"""Stacks of processes that a rank has started, without py-spy."""

import faulthandler
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from allranks.agent import linux
from allranks.agent.diagnose import stacks
from allranks.agent.diagnose.stacks import (
    STACKS_SIGNAL,
    ChildHang,
    ParentRank,
    StackFile,
    child_stacks_text,
    describe_children,
    inspect_children,
)
from allranks.agent.output import OutputStream
from allranks.agent.stacks import Stacks

PROGRAM = """
import time
def hangs_here():
    print("ready", flush=True)
    time.sleep(600)
hangs_here()
"""


@pytest.fixture
def without_py_spy(monkeypatch):
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)


@pytest.fixture
def parent(tmp_path):
    """Returns this process as a parent rank, and the writing end of its standard error."""
    reading, writing = os.pipe()
    stream = OutputStream(reading)
    pipes = frozenset({os.fstat(reading).st_ino})
    yield (
        ParentRank(
            number=0,
            pid=os.getpid(),
            names={},
            stacks=StackFile(tmp_path / "stacks"),
            read_stderr=stream.peek,
            pipes=pipes,
        ),
        writing,
    )
    os.close(reading)
    os.close(writing)


@contextmanager
def child(command, **options):
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def of(pid, parent):
    deadline = time.monotonic() + stacks.CHILDREN_TIMEOUT
    return next(child for child in inspect_children(parent, deadline) if child.pid == pid)


def forked_child(file, ready):
    pid = os.fork()
    if pid == 0:
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
        hang_in_a_fork(ready)
    return pid


def hang_in_a_fork(ready):
    try:
        os.write(ready, b".")
        time.sleep(600)
    finally:
        os._exit(1)


@pytest.mark.usefixtures("without_py_spy")
def test_a_fork_writes_its_stacks_to_the_stack_file_and_is_stopped(parent, tmp_path):
    reading, writing = os.pipe()
    with (tmp_path / "stacks").open("ab") as file:
        pid = forked_child(file, writing)
    try:
        assert os.read(reading, 1)
        os.kill(pid, signal.SIGSTOP)
        found = of(pid, parent[0])
        assert found.location.startswith(f"child process {pid} was in {__file__}:")
        assert re.search(r" in hang_in_a_fork, \d+\.\d s after its start$", found.location)
        os.waitpid(pid, os.WUNTRACED)
        assert linux.state_of(pid) == "T"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.usefixtures("without_py_spy")
def test_another_python_writes_its_stacks_when_it_is_aborted(parent, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "RANK": "3"}
    with child([sys.executable, str(script)], stderr=parent[1], env=environment) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        found = of(process.pid, parent[0])
    assert found.location.startswith(f"child process (rank 3) was in {script}:")
    assert re.search(r" in hangs_here, \d+\.\d s after its start$", found.location)
    assert process.returncode == -signal.SIGABRT


@pytest.mark.usefixtures("without_py_spy")
def test_a_python_whose_stderr_is_not_the_ranks_is_not_aborted(parent, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with child([sys.executable, str(script)], stderr=subprocess.DEVNULL, env=environment) as process:
        process.stdout.readline()
        found = of(process.pid, parent[0])
        assert process.poll() is None
    assert (found.location, found.stacks) == ("", Stacks())


def test_another_program_is_described_by_the_kernel(parent):
    with child(["sleep", "600"]) as process:
        found = of(process.pid, parent[0])
    assert found.about.startswith(f"pid {process.pid}, state ")
    assert found.about.endswith("sleep 600")
    assert found.location == ""


def test_a_hundred_children_are_not_inspected(parent, monkeypatch):
    monkeypatch.setattr(linux, "descendants", lambda _pid: list(range(10**6, 10**6 + 100)))
    assert inspect_children(parent[0], time.monotonic() + 1) == []


@pytest.mark.usefixtures("without_py_spy")
def test_no_stacks_are_requested_after_the_deadline(parent, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with child([sys.executable, str(script)], stderr=parent[1], env=environment) as process:
        process.stdout.readline()
        found = inspect_children(parent[0], time.monotonic())
        assert process.poll() is None
    assert [child.stacks for child in found if child.pid == process.pid] == [Stacks()]


def hang(name, frame):
    stacks = f'Current thread 0x1 (most recent call first):\n  File "{frame}", line 1 in call\n' if frame else ""
    return ChildHang(pid=1, name=name, seconds=2.5, about="pid 1", stacks=Stacks(stacks))


def test_children_that_do_not_wait_for_a_peer_come_first():
    waits = '/x-packages/torch/distributed/a.py", line 1 in wait\n  File "/user.py'
    children = [hang("a", waits), hang("b", "/user.py"), hang("c", "<string>"), hang("d", "")]
    where = "was in /user.py:1 in call, 2.5 s after its start"
    assert describe_children(children) == f"; b {where}; a {where}"


def test_a_message_describes_at_most_three_children():
    assert describe_children([hang(name, "/user.py") for name in "abcde"]).endswith(
        "; c was in /user.py:1 in call, 2.5 s after its start; 2 more child processes"
    )
    assert describe_children([hang(name, "/user.py") for name in "abcd"]).endswith("; 1 more child process")


def test_the_description_of_no_children_is_empty():
    assert (describe_children([]), child_stacks_text([])) == ("", "")
