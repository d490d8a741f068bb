"""The first process of a container: it keeps the job's files in memory until they are fetched.

It starts the agent, ends with all that the agent left when that has ended, says so, and stays until the files have been
fetched; whoever fetches them removes the container. The agent shares its standard input and output.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from allranks.harness import linux
from allranks.harness.record_stream import RECORD_SEPARATOR
from allranks.records import ContainerEnded, encode

STOP_GRACE = 6.0
"""Seconds from the end of standard input, or a SIGTERM, until an agent is killed: its ranks take three to stop."""

FETCH_GRACE = 60.0
"""Seconds that the files stay when standard input has ended: whoever is to fetch them may be dead."""

ISOLATED = ("-I", "-S")
"""Options of Python by which no module of a suite, and none that is installed, gets into a process."""

COMMAND = Path(__file__).with_name("__main__.py")
"""The command of every job."""

_STDIN, _STDOUT = 0, 1


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the agent with these arguments; the exit status is the agent's, as a shell has it."""
    linux.adopt_orphans()
    linux.hide_from_others()
    bell = _bell_of_ended_children()
    agent = subprocess.Popen([sys.executable, *ISOLATED, str(COMMAND), "--hidden", *arguments])
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
    status = wait(agent, bell, STOP_GRACE)
    end_orphans()
    tell(status, linux.killed_for_memory())
    _wait_for_hangup(FETCH_GRACE)
    os._exit(status if status >= 0 else 128 - status)


def _bell_of_ended_children() -> int:
    """A descriptor that becomes readable when a child ends or another signal comes, with the signals' numbers."""
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    return bell


def wait(agent: subprocess.Popen[bytes], bell: int, grace: float) -> int:
    """Wait for the agent's end, and kill it when it does not end by itself.

    Args:
        agent: Its process.
        bell: Becomes readable when a child has ended or another signal has come, with the signals' numbers.
        grace: Seconds that it has after the end of standard input, or a SIGTERM.
    """
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    # Nothing is read: what comes is for the agent.
    poll.register(_STDIN, 0)
    deadline: float | None = None
    while agent.poll() is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = {descriptor for descriptor, _ in poll.poll(None if left is None else left * 1000)}
        rung = os.read(bell, 4096) if bell in ready else b""
        if _STDIN in ready:
            poll.unregister(_STDIN)
        if deadline is None and (_STDIN in ready or signal.SIGTERM in rung):
            deadline = time.monotonic() + grace
        if left == 0.0:
            agent.kill()
            return agent.wait()
    return agent.returncode


def end_orphans(patience: float = 2.0) -> None:
    """Kill what the agent left behind: nobody may write any more to what is about to be read.

    Args:
        patience: Seconds that they get to go; what a driver holds in the kernel does not, and keeps nobody waiting.
    """
    deadline = time.monotonic() + patience
    while (orphans := linux.children()) and time.monotonic() < deadline:
        # All of them first: one that does not go may take all the time there is.
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            _wait_for_end(pid, deadline)


def _wait_for_end(pid: int, deadline: float) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        if linux.is_readable(descriptor, max(0.0, deadline - time.monotonic())):
            os.waitpid(pid, 0)
    finally:
        os.close(descriptor)


def tell(status: int, memory_kills: int) -> None:
    """Say on standard output that the agent has ended; a line that somebody began there does not hide it."""
    record = ContainerEnded(at=round(time.time(), 6), status=status, memory_kills=memory_kills)
    try:
        linux.write_all(_STDOUT, b"\n" + RECORD_SEPARATOR + encode(record) + b"\n")
    except OSError:
        return  # nobody listens any more


def _wait_for_hangup(grace: float) -> None:
    while os.read(_STDIN, 4096):
        pass
    time.sleep(grace)
