"""Processes that cannot be signaled or reaped (ESRCH, EPERM, ECHILD) never make a supervisor fail."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
from long_lists import quick

from allranks.agent import container_init, gpus, linux, orphans
from allranks.agent.diagnose.stacks import ParentRank, StackFile, inspect_children
from allranks.agent.gangs import local_ranks
from allranks.agent.gangs.local_ranks import LocalRanks, Stop, fork_ranks
from allranks.agent.orphans import end_children, kill_group, kill_orphans

ANSWERS = [errno.ESRCH, errno.EPERM, errno.ECHILD]
CALLS = ((os, "kill"), (os, "killpg"), (os, "waitpid"), (signal, "pidfd_send_signal"))


@pytest.fixture
def child():
    process = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def ranks():
    ranks = fork_ranks([0], lambda *_: time.sleep(600))
    yield ranks
    for rank in ranks:
        os.kill(rank.pid, signal.SIGKILL)
        os.waitpid(rank.pid, 0)
        rank.close()


@pytest.fixture(params=ANSWERS, ids=errno.errorcode.get)
def refuse(request, monkeypatch, child):
    """Make all requests about processes fail, as if by the kernel."""
    monkeypatch.setattr(orphans, "REAP_TIMEOUT", 0.01)
    monkeypatch.setattr(orphans, "_ORPHANS_TIMEOUT", 0.1)
    monkeypatch.setattr(local_ranks, "REAP_TIMEOUT", 0.01)
    monkeypatch.setattr(linux, "children", lambda: frozenset({child.pid}))

    def answer(*_):
        raise OSError(request.param, os.strerror(request.param))

    def refuse():
        for module, name in CALLS:
            monkeypatch.setattr(module, name, answer)
        monkeypatch.setattr(linux, "signal_thread", lambda *_: False)

    yield refuse
    monkeypatch.undo()


def in_a_gang(act):
    def clean_up(folder, ranks, child):
        gang = LocalRanks(ranks, folder, lambda _pids: {child.pid})
        act(gang)

    return clean_up


def check_a_gpu(_folder, _ranks, child):
    answer, end = os.pipe()
    gpus._Check("GPU-a", child.pid, answer).error(0.0, 0.0)
    os.close(end)


def inspect_children_of_a_rank(folder, ranks, _child):
    stacks = StackFile(folder / "stacks.txt")
    parent = ParentRank(number=0, pid=ranks[0].pid, names={}, stacks=stacks, read_stderr=str, pipes=frozenset())
    inspect_children(parent, 0.1)


@pytest.mark.parametrize(
    "clean_up",
    quick(
        3,
        [
            lambda *_: container_init.end_orphans(0.05),
            lambda _folder, _ranks, child: kill_orphans(lambda _pids: {child.pid}, {1: 0}, ()),
            lambda _folder, _ranks, child: kill_orphans(lambda _pids: {child.pid}, {child.pid: 0}, ()),
            lambda *_: end_children(),
            lambda _folder, _ranks, child: kill_group(child.pid),
            lambda _folder, ranks, _child: ranks[0].signal(signal.SIGTERM),
            lambda _folder, ranks, _child: (ranks[0].freeze(), ranks[0].signal(signal.SIGTERM)),
            lambda _folder, ranks, _child: ranks[0].kill_group(),
            lambda _folder, ranks, _child: local_ranks._kill(ranks[0].pid),
            *(in_a_gang(lambda gang, how=how: gang.stop([0], how)) for how in Stop),
            in_a_gang(lambda gang: kill_orphans(gang._orphans, {1: 0}, ())),
            check_a_gpu,
            inspect_children_of_a_rank,
        ],
    ),
)
def test_no_clean_up_raises(child, ranks, refuse, clean_up, tmp_path):
    refuse()
    clean_up(tmp_path, ranks, child)


AS_ANOTHER_USER = """
import codecs, os, subprocess, sys, time
from allranks.agent import linux
from allranks.agent.container_init import end_orphans
from allranks.agent.orphans import end_children, kill_orphans

linux.adopt_orphans()
codecs.lookup("ascii")  # this user cannot read the modules of Python
nothing = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
other = subprocess.Popen(["sleep", "601"], start_new_session=True, **nothing)  # like a process started by sudo
print(other.pid, flush=True)
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
own = subprocess.Popen(["sleep", "602"], **nothing)
print(eval(sys.argv[1]), flush=True)
print(own.pid in linux.children(), other.pid in linux.children(), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process that belongs to another user")
@pytest.mark.parametrize(
    "act", quick(1, ["end_orphans(0.2)", "kill_orphans(lambda pids: linux.children(), {1: 0}, ())", "end_children()"])
)
def test_a_process_of_another_user_is_named_and_all_others_are_ended(act):
    command = [sys.executable, "-c", AS_ANOTHER_USER, act]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    pid, *_, last = done.stdout.splitlines()
    try:
        assert (done.returncode, last) == (0, "False True"), done.stderr
        [named] = [line for line in (done.stdout + done.stderr).splitlines() if "sleep 601" in line]
        assert pid in named
    finally:
        os.kill(int(pid), signal.SIGKILL)
