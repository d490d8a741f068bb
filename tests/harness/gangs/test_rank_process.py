"""Forks of ranks that do not come to be, or are no ranks."""

import errno
import os
from pathlib import Path

import pytest

from allranks.harness import kernel
from allranks.harness.gangs.rank_process import fork_ranks


def descriptors():
    return sorted(Path("/proc/self/fd").iterdir())


def test_an_exception_does_not_make_a_fork_go_on_as_its_parent():
    def break_down(*_):
        raise ValueError

    [rank] = fork_ranks([0], break_down)
    try:
        assert kernel.is_readable(rank.pidfd, 20)
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

    known, before = kernel.children(), descriptors()
    monkeypatch.setattr(os, lacking, lack_the_second)
    with pytest.raises(OSError, match="no more"):
        fork_ranks([0, 1], lambda *_: os._exit(0))
    assert kernel.children() == known
    assert descriptors() == before
