"""Forks of ranks that fail, and the supervisor's side of a rank."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from allranks.agent import linux
from allranks.agent.channel import GpuLost, RankEnd
from allranks.agent.gangs import local_ranks
from allranks.agent.gangs.local_ranks import fork_ranks


def descriptors():
    return sorted(Path("/proc/self/fd").iterdir())


def test_an_exception_ends_a_fork():
    def break_down(*_):
        raise ValueError

    [rank] = fork_ranks([0], break_down)
    try:
        assert linux.is_readable(rank.pidfd, 20)
        assert rank.reap() == 1
    finally:
        rank.close()


@pytest.mark.parametrize("function", ["fork", "pidfd_open"])
def test_a_failed_fork_leaves_no_process_and_no_descriptor(monkeypatch, function):
    real, calls = getattr(os, function), []

    def fail_the_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.EAGAIN, "no more")
        return real(*arguments)

    known, before = linux.children(), descriptors()
    monkeypatch.setattr(os, function, fail_the_second)
    with pytest.raises(OSError, match="no more"):
        fork_ranks([0, 1], lambda *_: os._exit(0))
    assert linux.children() == known
    assert descriptors() == before


def test_a_rank_only_has_its_own_connections():
    def send_descriptors(_rank, connection, _call_log):
        sockets = [path.name for path in descriptors() if path.is_socket()]
        RankEnd(connection).send(GpuLost(message=" ".join(sockets), nodeid=str(connection)))
        os._exit(0)

    before = {path.name for path in descriptors()}
    ranks = fork_ranks([0, 1, 2], send_descriptors)
    try:
        for rank in ranks:
            assert linux.is_readable(rank.pidfd, 20)
            [report] = rank.link.read()
            assert set(report.message.split()) - before == {report.nodeid}
    finally:
        for rank in ranks:
            rank.end()


def test_ending_a_rank_leaves_no_process_and_no_descriptor():
    known, before = linux.children(), descriptors()
    [rank] = fork_ranks([0], lambda *_: signal.pause())
    rank.end()
    assert rank.exit_status == -signal.SIGKILL
    assert linux.children() == known
    assert descriptors() == before


def test_a_rank_that_another_process_has_reaped_has_no_status(monkeypatch):
    monkeypatch.setattr(local_ranks, "REAP_TIMEOUT", 0.1)
    [rank] = fork_ranks([0], lambda *_: os._exit(3))
    os.waitpid(rank.pid, 0)
    assert rank.reap() is None
    rank.signal(signal.SIGKILL)  # has no effect: another process may have its process id
    rank.kill_group()
    rank.close()


def start_two(_rank, connection, _call_log):
    """Run a rank that leads a process group with two more processes, and sends their process ids."""
    os.setsid()
    pids: list[int] = []
    for _ in range(2):
        pids.append(os.fork())
        if not pids[-1]:
            signal.pause()
    RankEnd(connection).send(GpuLost(message=" ".join(map(str, pids))))
    while True:  # a pause ends at SIGWINCH where an earlier test has imported readline, which handles it
        signal.pause()


def state_in(pid, states):
    deadline = time.monotonic() + 20
    while (state := linux.state_of(pid)) not in states and time.monotonic() < deadline:
        time.sleep(0.01)
    return state


def test_a_frozen_rank_handles_a_signal_while_its_children_stay_frozen():
    [rank] = fork_ranks([0], start_two)
    try:
        assert linux.is_readable(rank.link.descriptor, 20)
        [report] = rank.link.read()
        children = [int(pid) for pid in report.message.split()]
        rank.freeze()
        assert [state_in(pid, "T") for pid in (rank.pid, *children)] == ["T", "T", "T"]
        rank.signal(signal.SIGWINCH)
        assert state_in(rank.pid, "SR") in ("S", "R"), "it handles the signal"
        assert [linux.state_of(pid) for pid in children] == ["T", "T"]
        rank.signal(signal.SIGSTOP)
        assert state_in(rank.pid, "T") == "T"
        rank.freeze()
        rank.signal(signal.SIGWINCH)
        assert linux.state_of(rank.pid) == "T", "a rank that something else has stopped stays stopped"
    finally:
        rank.end()
    assert [state_in(pid, ("", "Z")) for pid in children] in (["", ""], ["Z", "Z"], ["", "Z"], ["Z", ""])
