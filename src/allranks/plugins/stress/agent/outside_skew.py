"""Disturbs ranks from outside for ``--skew``: stops and slows down processes, and keeps cores busy.

C++ threads make no calls that a rank could delay, but stopping a process also stops its C++ threads.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from allranks.agent import linux
from allranks.plugins.stress.agent.skew import Delay

_CROWD: Final = 4
"""Busy processes on a rank's core, so that the rank gets a fifth of the core."""

_PERIOD, _SHARE = 0.1, 0.2
"""A throttled rank runs for this share of each period, in seconds, as under a quota of its control group (cpu.max)."""

_SPIN: Final = "import sys, time; end = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
"""Ends by itself, so that it does not keep spinning if the supervisor is killed."""

_PROCESSOR: Final = 36
"""The index of the last used CPU in ``/proc/PID/stat``, counted after the name (proc(5): field 39)."""


@contextmanager
def disturbing(pids: Mapping[int, int], delays: Collection[Delay]) -> Iterator[None]:
    """Disturb ranks from now on, at most until the block ends.

    Args:
        pids: The process id of each rank on this host.
        delays: What to do, and when.
    """
    over = threading.Event()
    threads = [threading.Thread(target=_apply, args=(pids, delay, over), daemon=True) for delay in delays if pids]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _apply(pids: Mapping[int, int], delay: Delay, over: threading.Event) -> None:
    # The rank may have ended, or the host may be out of processes.
    with suppress(OSError):
        if delay.kind == "busy":  # then the rank is a number of processes
            _keep_busy(delay.rank, delay, over, None)
        elif (pid := pids.get(delay.rank)) is None:
            return
        elif delay.kind == "crowded":
            _keep_busy(_CROWD, delay, over, lambda: _core_of(pid))
        elif delay.kind == "throttled":
            _stop(pid, delay, over, _PERIOD * (1 - _SHARE), _PERIOD * _SHARE)
        else:
            _stop(pid, delay, over, delay.seconds)


def _stop(pid: int, delay: Delay, over: threading.Event, stopped: float, running: float = 0.0) -> None:
    """Stop all threads of a process for `stopped` seconds, let them run for `running` seconds, and so on."""
    pidfd = os.pidfd_open(pid)  # the process may end, and its id may be reused
    try:
        if over.wait(delay.call / 1000):
            return
        end = time.monotonic() + delay.seconds
        while (left := end - time.monotonic()) > 0 and not over.is_set():
            linux.signal_pidfd(pidfd, signal.SIGSTOP)
            try:
                over.wait(min(stopped, left))
            finally:
                linux.signal_pidfd(pidfd, signal.SIGCONT)
            over.wait(running)
    finally:
        os.close(pidfd)


def _keep_busy(count: int, delay: Delay, over: threading.Event, core: Callable[[], int] | None) -> None:
    """Run busy processes for the length of a delay, on one core or on any."""
    if over.wait(delay.call / 1000):
        return
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-I", "-S", "-c", _SPIN, str(delay.seconds)]
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
            if core is not None:
                os.sched_setaffinity(processes[-1].pid, {core()})
        over.wait(delay.seconds)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _core_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[_PROCESSOR])
