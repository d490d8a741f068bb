"""Attacks that fork, and let both processes return."""

import ctypes
import os
import time

from reach import attack


@attack("honest", "bad")
def ends_as_its_child(rank):
    """A forked child returns from the test, and rank 1 itself ends at once, with the status of success."""
    if rank == 1 and os.fork() > 0:
        os._exit(0)


@attack("honest", "bad", nodes=2)
def node_forks_and_returns(rank):
    """A forked child returns in place of the rank of the second node, which fails."""
    if rank == 1:
        if os.fork() == 0:
            return
        time.sleep(2)
        raise AssertionError


@attack("honest", "bad", is_sample=True)
def returns_from_fork(rank):
    """A forked child of rank 1 returns from the test as if it were the rank, which fails later."""
    if rank == 1:
        if os.fork() == 0:
            return
        time.sleep(2)
        raise AssertionError


@attack("honest", "bad")
def returns_from_fork_in_c(rank):
    """A child that libc has forked, behind Python's back, returns from the test; rank 1 fails."""
    if rank == 1:
        if ctypes.CDLL(None).fork() == 0:
            return
        time.sleep(1)
        raise AssertionError


@attack("honest", "bad")
def returns_from_forkpty(rank):
    """A child of rank 1 on a terminal of its own returns from the test; the rank fails."""
    if rank == 1:
        if os.forkpty()[0] == 0:
            return
        time.sleep(1)
        raise AssertionError


@attack("honest", "bad")
def returns_from_vfork(rank):
    """A child that shares the memory of rank 1 returns from the test, and its parent never does."""
    if rank == 1:
        if ctypes.CDLL(None).vfork() == 0:
            return
        raise AssertionError


@attack("honest", "bad")
def returns_in_every_child(rank):
    """Twenty forked children of rank 1 return from the test, each before the rank, which fails."""
    if rank == 1:
        for _ in range(20):
            if os.fork() == 0:
                return
        time.sleep(2)
        raise AssertionError
