"""Forks of ranks that do not come to be, or are no ranks."""

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


def test_an_exception_does_not_make_a_fork_go_on_as_its_parent():
    def break_down(*_):
        raise ValueError

    [rank] = fork_ranks([0], break_down)
    try:
        assert linux.is_readable(rank.pidfd, 20)
        assert rank.reap() == 1
    finally:
        rank.close()


@pytest.mark.parametrize("lacking", ["fork", "pidfd_open"])
def test_ranks_that_cannot_all_be_started_leave_nothing(monkeypatch, lacking):
    real, calls = getattr(os, lacking), []

    def lack_the_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.EAGAIN, "no more")
        return real(*arguments)

    known, before = linux.children(), descriptors()
    monkeypatch.setattr(os, lacking, lack_the_second)
    with pytest.raises(OSError, match="no more"):
        fork_ranks([0, 1], lambda *_: os._exit(0))
    assert linux.children() == known
    assert descriptors() == before


def test_a_rank_has_its_own_ends_and_nobody_elses():
    def tell_descriptors(_rank, connection, _board):
        sockets = [each.name for each in descriptors() if each.is_socket()]
        RankEnd(connection).send(GpuLost(message=" ".join(sockets), nodeid=str(connection)))
        os._exit(0)

    before = {each.name for each in descriptors()}
    ranks = fork_ranks([0, 1, 2], tell_descriptors)
    try:
        for rank in ranks:
            assert linux.is_readable(rank.pidfd, 20)
            [report] = rank.link.read()
            assert set(report.message.split()) - before == {report.nodeid}
    finally:
        for rank in ranks:
            rank.end()


def test_to_end_a_rank_leaves_neither_process_nor_descriptor():
    known, before = linux.children(), descriptors()
    [rank] = fork_ranks([0], lambda *_: signal.pause())
    rank.end()
    assert rank.exit_status == -signal.SIGKILL
    assert linux.children() == known
    assert descriptors() == before


def test_a_rank_that_somebody_else_has_reaped_has_no_status(monkeypatch):
    monkeypatch.setattr(local_ranks, "REAP_TIMEOUT", 0.1)
    [rank] = fork_ranks([0], lambda *_: os._exit(3))
    os.waitpid(rank.pid, 0)
    assert rank.reap() is None
    rank.signal(signal.SIGKILL)  # to nobody: its process id may be anyone's
    rank.kill_group()
    rank.close()


def start_two(_rank, connection, _board):
    """A rank that leads a group of two more processes, and tells their process ids."""
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


def test_a_frozen_rank_goes_on_to_take_a_signal_and_its_children_do_not():
    [rank] = fork_ranks([0], start_two)
    try:
        assert linux.is_readable(rank.link.descriptor, 20)
        [report] = rank.link.read()
        children = [int(pid) for pid in report.message.split()]
        rank.freeze()
        assert [state_in(pid, "T") for pid in (rank.pid, *children)] == ["T", "T", "T"]
        rank.signal(signal.SIGWINCH)
        assert state_in(rank.pid, "SR") in ("S", "R"), "it takes the signal"
        assert [linux.state_of(pid) for pid in children] == ["T", "T"]
        rank.signal(signal.SIGSTOP)
        assert state_in(rank.pid, "T") == "T"
        rank.freeze()
        rank.signal(signal.SIGWINCH)
        assert linux.state_of(rank.pid) == "T", "whoever has stopped the rank may want it to stay so"
    finally:
        rank.end()
    assert [state_in(pid, ("", "Z")) for pid in children] in (["", ""], ["Z", "Z"], ["", "Z"], ["Z", ""])
