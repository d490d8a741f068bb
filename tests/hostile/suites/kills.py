"""Attacks that kill, stop or trace processes."""

import ctypes
import os
import signal
import time
from contextlib import suppress

import reach
import torch
import torch.distributed as dist
from reach import attack


@attack("unpassed", "unpassed", engines=["docker"])
def asks_every_process_to_end(rank):
    """Rank 1 asks every process of its user to end."""
    if rank == 1 and reach.IN_CONTAINER:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(-1, signal.SIGTERM)
    time.sleep(3600)


@attack("unpassed", "unpassed")
def asks_the_parent_to_end(rank):
    """Rank 1 sends its parent every signal by which a process is asked to end or to reread something."""
    if rank == 1:
        parent = os.pidfd_open(reach.ancestors()[0])  # and nobody else, when it has ended
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(parent, number)
    time.sleep(3600)


@attack("unpassed", "unpassed", engines=["docker"])
def kills_every_process(rank):
    """Rank 1 kills every process of its user but itself."""
    if rank == 1 and reach.IN_CONTAINER:
        os.kill(-1, signal.SIGKILL)
    time.sleep(3600)


@attack("bad", "any", is_sample=True)
def kills_its_peer(rank):
    """Rank 1 kills rank 0, which has no chance to pass."""
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 0)
    if rank == 1:
        os.kill(int(pid), signal.SIGKILL)
    else:
        time.sleep(3600)


@attack("unpassed", "bad")
def kills_its_process_group(rank):
    """Rank 1 kills its own process group."""
    if rank == 1 and {os.getpgrp()} <= {os.getpid(), *reach.pids()}:  # the job's own
        os.killpg(0, signal.SIGKILL)
    time.sleep(3600)


@attack("unpassed", "unpassed", engines=["docker"])
def kills_the_eldest_first(rank):
    """Rank 1 kills its ancestors, the eldest first."""
    if rank == 1:
        for pid in reversed(reach.ancestors()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    time.sleep(3600)


@attack("unpassed", "unpassed", engines=["docker"])
def kills_the_parent(rank):
    """Rank 1 kills its parent."""
    if rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


@attack("bad", "any")
def makes_its_peer_crash(rank):
    """Rank 1 has rank 0 killed by signals of memory and of arithmetic."""
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 0)
    if rank == 1:
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
            os.kill(int(pid), number)
    else:
        time.sleep(3600)


@attack("any", "any", engines=["docker"], tests={"test_after": ["any", "any"]})
def overwrites_memory(rank):
    """Rank 1 makes every outcome in the memory of all other processes a pass; it can reach only outcomes to come."""
    for pid in reach.pids() if rank == 1 else ():
        reach.overwrite_memory(pid)


@attack("unpassed", "unpassed", engines=["docker"])
def sends_the_parent_every_signal(rank):
    """Rank 1 sends its ancestors every signal but those that stop a process."""
    if rank == 1:
        stops = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
        for pid in reach.ancestors():
            for number in sorted(signal.valid_signals() - stops):
                with suppress(OSError):
                    os.kill(pid, number)
    time.sleep(3600)


@attack("unpassed", "unpassed", engines=["docker"], limits={"job": 25})
def stops_every_process(rank):
    """Rank 1 stops every process of the job but itself."""
    if rank == 1:
        for pid in reach.pids():
            with suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
    time.sleep(3600)


@attack("bad", "any")
def stops_its_peer(rank):
    """Rank 1 stops rank 0, and passes."""
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 0)
    if rank == 1:
        os.kill(int(pid), signal.SIGSTOP)
    else:
        time.sleep(3600)


@attack("unpassed", "unpassed", engines=["docker"], limits={"job": 25})
def stops_the_parent(rank):
    """Rank 1 stops its parent."""
    if rank == 1:
        os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(3600)


@attack("honest", "bad")
def traces_itself(rank):
    """Rank 1 asks its parent to trace it, and stops at a signal."""
    if rank == 1:
        ctypes.CDLL(None).ptrace(0, 0, None, None)
        os.kill(os.getpid(), signal.SIGUSR1)
        raise AssertionError
