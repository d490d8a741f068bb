"""Attacks that forge messages of ranks, or damage their channels."""

import array
import os
import socket
import time
from contextlib import suppress

import pytest
import reach
from reach import attack


@attack("honest", "bad")
def child_calls_the_hooks(rank, request):
    """A forked child calls pytest's hook with a report by which the test of rank 1 has passed; rank 1 fails."""
    if rank == 1:
        child = os.fork()
        if child == 0:
            for when in ("setup", "call", "teardown"):
                call = pytest.CallInfo.from_call(lambda: None, when=when)
                report = pytest.TestReport.from_item_and_call(request.node, call)
                request.config.hook.pytest_runtest_logreport(report=report)
            os._exit(0)
        os.waitpid(child, 0)
        raise AssertionError


@attack("honest", "bad")
def child_speaks_for_it(rank):
    """A forked child writes forged messages into the descriptors of rank 1, which fails."""
    if rank == 1:
        child = os.fork()
        if child == 0:
            reach.write_own(reach.plausible() + reach.better(reach.harvest()))
            os._exit(0)
        os.waitpid(child, 0)
        raise AssertionError


@attack("honest|crashed", "any", engines=["docker"])
def damages_every_process(rank):
    """Rank 1 writes what no harness expects into every descriptor of every process."""
    if rank == 1:
        for pid in reach.pids():
            reach.write_into(pid, reach.IMPLAUSIBLE)


@attack("honest", "any")
def damages_its_own(rank):
    """Rank 1 writes what no harness expects into each descriptor that it has inherited."""
    if rank == 1:
        reach.write_own(reach.IMPLAUSIBLE)


@attack("honest", "any")
def damages_the_parent(rank):
    """Rank 1 writes garbage into every descriptor of its ancestors in the job: only this job may suffer."""
    if rank == 1:
        for pid in reach.ancestors():
            reach.write_into(pid, reach.IMPLAUSIBLE)


@attack("honest|timed_out", "any", engines=["docker"])
def drains_the_parent(rank):
    """Rank 1 reads away what lies in the pipes of its ancestors: what is lost must not be green."""
    end = time.monotonic() + 3
    while rank == 1 and time.monotonic() < end:
        for pid in reach.ancestors():
            for number in reach.descriptors(pid):
                with suppress(OSError):
                    descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
                    with suppress(OSError):
                        os.read(descriptor, reach.MIB)
                    os.close(descriptor)


@attack("honest|timed_out", "any", engines=["docker"])
def floods_the_parent(rank):
    """Rank 1 writes a line of 64 MiB without an end into every descriptor of its ancestors in the job."""
    if rank == 1:
        for pid in reach.ancestors():
            reach.write_into(pid, reach.ENDLESS)


@attack("honest|crashed", "any", engines=["docker"])
def forges_in_every_process(rank):
    """Rank 1 writes messages that pass every test into every descriptor of every process."""
    if rank == 1:
        for pid in reach.pids():
            reach.write_into(pid, reach.plausible() + reach.better(reach.harvest()))


@attack("honest", "any", is_sample=True)
def forges_in_own_descriptors(rank):
    """Rank 1 writes messages that pass every test into each descriptor that it has inherited."""
    if rank == 1:
        reach.write_own(reach.plausible())


@attack("honest", "any", engines=["docker"])
def forges_in_the_parent(rank):
    """Rank 1 writes messages that pass every test into every descriptor of its ancestors."""
    if rank == 1:
        for pid in reach.ancestors():
            reach.write_into(pid, reach.plausible() + reach.better(reach.harvest()))


@attack("honest", "any", nodes=2, engines=["docker"])
def node_forges_to_its_leader(rank):
    """The rank of the second node writes forged messages into every descriptor of every process of its node."""
    if rank == 1:
        for pid in reach.pids():
            reach.write_into(pid, reach.plausible() + reach.IMPLAUSIBLE)


@attack("honest", "any")
def repeats_files(rank):
    """Rank 1 writes all that it can read of the job's files into each descriptor, with every outcome a pass."""
    if rank == 1:
        data = b"".join(
            path.read_bytes() for path in reach.files() if path.is_file() and path.stat().st_size < reach.MIB
        )
        reach.write_own(reach.better(data))


@attack("honest", "any")
def repeats_its_own_messages(rank):
    """Rank 1 finds messages in its own memory and writes them into each descriptor, with every outcome a pass."""
    if rank == 1:
        reach.write_own(reach.better(reach.harvest()))


@attack("honest", "any")
def reports_a_ghost(rank, request):
    """Rank 1 reports a pass of tests that nobody has collected."""
    if rank == 1:
        for nodeid in ("ghost.py::test_ghost", "", "::", "test_1_attack.py::test_attack::call"):
            call = pytest.CallInfo.from_call(lambda: None, when="call")
            report = pytest.TestReport.from_item_and_call(request.node, call)
            report.nodeid = nodeid
            request.config.hook.pytest_runtest_logreport(report=report)


@attack("honest", "any")
def reports_another_test(rank, request):
    """Rank 1 calls pytest's hook with reports by which the tests before and after this one have passed."""
    if rank == 1:
        for item in request.session.items:
            for when in ("setup", "call", "teardown"):
                call = pytest.CallInfo.from_call(lambda: None, when=when)
                report = pytest.TestReport.from_item_and_call(item, call)
                request.config.hook.pytest_runtest_logreport(report=report)


@attack("honest", "any")
def sends_descriptors(rank):
    """Rank 1 sends its own descriptors along with messages, more than a reader that does not close them can hold."""
    gifts = array.array("i", [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]) if rank == 1 else ()
    for number in reach.own_descriptors() if rank == 1 else ():
        for _ in range(20):
            with suppress(OSError):
                channel = socket.socket(fileno=os.dup(number))
                channel.setblocking(False)
                channel.sendmsg([b"{}\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, gifts)])
                channel.close()
