"""The planted faults: what each rank of a two-rank gloo process group does. Rank 1 is the one at fault.

Nothing here knows what runs it: all three runners call the same bodies, on a process group that is there already.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import torch
from torch import distributed

AT_FAULT = 1
MEGABYTE = 1 << 20


class UnpicklableError(Exception):
    """Holds a lock, which cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault.

    Attributes:
        title: The row of the table.
        culprit: What rank 1 does.
        peers: What the other rank does.
        tear_down: What rank 1 does when its fixtures are torn down.
        judged: The test whose verdict counts.
    """

    title: str
    culprit: Callable[[], object]
    peers: Callable[[], object] = lambda: None
    tear_down: Callable[[], object] = lambda: None
    judged: str = "test_fault"

    def run(self) -> None:
        """Be one rank of the test."""
        (self.culprit if distributed.get_rank() == AT_FAULT else self.peers)()

    def end(self) -> None:
        """Be one rank of the tear-down."""
        if distributed.get_rank() == AT_FAULT:
            self.tear_down()


def wait_for_all() -> None:
    """A collective that every rank has to come to."""
    distributed.all_reduce(torch.ones(8))


def fail(message: str = "rank 1 is wrong") -> NoReturn:
    """An assertion that does not hold."""
    raise AssertionError(message)


def hang() -> None:
    """Never come back."""
    threading.Event().wait()


def hang_on() -> None:
    """Never come back, not even for SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang()


def kill(number: int) -> None:
    """Send a signal to this process."""
    os.kill(os.getpid(), number)


def raise_unpicklable() -> NoReturn:
    """Raise what cannot be sent to another process."""
    raise UnpicklableError


def skip() -> NoReturn:
    """Skip as any test can."""
    msg = "rank 1 alone skips"
    raise unittest.SkipTest(msg)


def print_a_gigabyte() -> None:
    """Print, then fail."""
    line = "x" * (MEGABYTE - 1) + "\n"
    for _ in range(1024):
        sys.stdout.write(line)
    fail("after a gigabyte")


def leave_a_child() -> None:
    """Start a process and forget it."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)


def reduce_then_broadcast() -> None:
    """Two collectives of different sizes, in this order."""
    distributed.all_reduce(torch.ones(8))
    distributed.broadcast(torch.ones(4), src=0)


def broadcast_then_reduce() -> None:
    """The same two, in the other order."""
    distributed.broadcast(torch.ones(4), src=0)
    distributed.all_reduce(torch.ones(8))


class StepError(Exception):
    """What a suite of its own kind makes of trouble in a collective."""


def wait_and_wrap() -> None:
    """Wait for all, for five seconds, and raise something else when that does not help."""
    try:
        distributed.all_reduce(torch.ones(8), async_op=True).wait(timedelta(seconds=5))
    except RuntimeError as error:
        msg = "the step could not be made"
        raise StepError(msg) from error


def be_traced() -> None:
    """Have a child trace this process (ptrace(2), PTRACE_ATTACH), which holds it for ever."""
    rank = os.getpid()
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER: anybody
    if os.fork() == 0:
        ctypes.CDLL(None).ptrace(16, rank, 0, 0)
        hang()
    hang()


def leave_a_message() -> None:
    """Send what nobody receives."""
    distributed.isend(torch.ones(1), dst=0)


FAULTS: Mapping[str, Fault] = {
    "assert": Fault(title="rank 1 asserts, rank 0 waits in a collective", culprit=fail, peers=wait_for_all),
    "sigkill": Fault(title="rank 1 dies of SIGKILL, nobody waits", culprit=lambda: kill(signal.SIGKILL)),
    "sigsegv": Fault(
        title="rank 1 dies of SIGSEGV, rank 0 waits", culprit=lambda: kill(signal.SIGSEGV), peers=wait_for_all
    ),
    "os_exit_0": Fault(title="rank 1 calls `os._exit(0)`", culprit=lambda: os._exit(0)),
    "sys_exit_0": Fault(title="rank 1 calls `sys.exit(0)`", culprit=lambda: sys.exit(0)),
    "exit_77": Fault(title="rank 1 alone leaves with exit code 77", culprit=lambda: sys.exit(77)),
    "exit_90": Fault(title="rank 1 leaves with exit code 90", culprit=lambda: os._exit(90)),
    "hang": Fault(title="rank 1 hangs, rank 0 waits", culprit=hang, peers=wait_for_all),
    "hang_alone": Fault(title="rank 1 hangs, nobody waits", culprit=hang),
    "hang_tear_down": Fault(
        title="rank 1 hangs in tear-down", culprit=wait_for_all, peers=wait_for_all, tear_down=hang
    ),
    "sigstop": Fault(
        title="rank 1 is stopped (SIGSTOP), rank 0 waits", culprit=lambda: kill(signal.SIGSTOP), peers=wait_for_all
    ),
    "sigterm": Fault(title="rank 1 hangs and ignores SIGTERM", culprit=hang_on),
    "skip": Fault(title="rank 1 skips, rank 0 waits", culprit=skip, peers=wait_for_all),
    "order": Fault(title="different order of collectives", culprit=broadcast_then_reduce, peers=reduce_then_broadcast),
    "kind": Fault(title="rank 0 in `all_reduce`, rank 1 in `barrier`", culprit=distributed.barrier, peers=wait_for_all),
    "wrapped": Fault(title="rank 1 hangs, rank 0's time-out is wrapped", culprit=hang, peers=wait_and_wrap),
    "traced": Fault(title="rank 1 is traced by a child of its own", culprit=be_traced, peers=wait_for_all),
    "leftover": Fault(title="rank 1 sends what nobody receives, and passes", culprit=leave_a_message),
    "message": Fault(title="exception with a message of 50 MB", culprit=lambda: fail("x" * (50 * MEGABYTE))),
    "pickle": Fault(title="exception that does not pickle", culprit=raise_unpicklable),
    "output": Fault(title="rank 1 prints 1 GB and fails", culprit=print_a_gigabyte),
    "child": Fault(title="rank 1 leaves a child process, and passes", culprit=leave_a_child),
    "poison": Fault(
        title="the test after one in which rank 1 asserted while rank 0 waited",
        culprit=fail,
        peers=wait_for_all,
        judged="test_next",
    ),
}
"""The faults by name."""

FAULT = FAULTS[os.environ.get("PLANTED_FAULT", "assert")]
"""The fault of this run."""
