"""Attacks on descriptors, limits and other resources of processes."""

import fcntl
import os
import resource
import signal
import socket
import time
from contextlib import suppress

import reach
from reach import attack


@attack("honest", "bad", is_sample=True)
def closes_descriptors(rank):
    """Rank 1 closes every descriptor that it has."""
    if rank == 1:
        os.closerange(0, 4096)
        raise AssertionError


@attack("honest", "bad")
def covers_descriptors(rank):
    """Rank 1 puts the null device in the place of every descriptor."""
    if rank == 1:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(64):
            os.dup2(null, number)
        raise AssertionError


@attack("unpassed", "unpassed", engines=["docker"])
def gives_the_parent_one_second(rank):
    """Rank 1 lets its ancestors have one more second of the processor, and then fails."""
    for pid in reach.ancestors() if rank == 1 else ():
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))
    time.sleep(3600)


@attack("honest|crashed", "any", engines=["docker"])
def limits_the_parent(rank):
    """Rank 1 takes every resource from its ancestors."""
    for pid in reach.ancestors() if rank == 1 else ():
        for limit in ("NOFILE", "FSIZE", "NPROC", "STACK", "DATA", "AS"):
            with suppress(OSError):
                resource.prlimit(pid, getattr(resource, f"RLIMIT_{limit}"), (0, 0))


@attack("honest", "any")
def makes_descriptors_block(rank):
    """Rank 1 turns non-blocking mode over on every descriptor, which those who share the file description share."""
    for number in reach.descriptors() if rank == 1 else ():
        with suppress(OSError):
            os.set_blocking(number, not os.get_blocking(number))


@attack("honest|crashed|errored", "any", engines=["docker"], is_alone=True)
def many_daemons(rank):
    """Rank 1 starts daemons until the job may have no more processes."""
    with suppress(OSError):
        for _ in range(20_000) if rank == 1 else ():
            if reach.daemonise():
                time.sleep(60)
                os._exit(0)


@attack("honest", "any")
def many_processes(rank):
    """Rank 1 leaves as many sleeping processes as it may have, a bounded number."""
    if rank == 1:
        for _ in range(60):
            try:
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
            except OSError:
                return


@attack("honest|timed_out", "any", engines=["docker"])
def moves_processes(rank):
    """Rank 1 gives all processes the worst place on one processor."""
    for pid in reach.pids() if rank == 1 else ():
        with suppress(OSError):
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
            os.setpriority(os.PRIO_PROCESS, pid, 19)
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


@attack("honest", "any")
def narrows_pipes(rank):
    """Rank 1 shrinks every pipe, requests its signals, and moves the offset of every file."""
    for number in reach.own_descriptors() if rank == 1 else ():
        with suppress(OSError):
            os.lseek(number, 0, os.SEEK_SET)
        for request, value in (
            (fcntl.F_SETPIPE_SZ, 4096),
            (fcntl.F_SETOWN, os.getppid()),
            (fcntl.F_SETSIG, signal.SIGIO),
        ):
            with suppress(OSError):
                fcntl.fcntl(number, request, value)
        with suppress(OSError):
            fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)


@attack("any", "bad")
def shuts_sockets_down(rank):
    """Rank 1 shuts down every socket that it has, for all who share it."""
    if rank == 1:
        for number in reach.own_descriptors():
            with suppress(OSError):
                socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)
        raise AssertionError


@attack("honest", "bad")
def swaps_descriptors(rank):
    """Rank 1 puts each of its descriptors in the place of the next."""
    if rank == 1:
        numbers = reach.own_descriptors()
        copies = [os.dup(number) for number in numbers]
        for copy, number in zip(copies, [*numbers[1:], numbers[0]], strict=True):
            os.dup2(copy, number)
        raise AssertionError
