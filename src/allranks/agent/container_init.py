"""The first process of a container: it keeps the job's files in memory until they are fetched.

It starts the agent, waits for its end, kills its leftover processes, reports the end, and stays until the files have
been fetched; the orchestrator then removes the container. The agent shares its standard input and output.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from allranks.agent import linux
from allranks.agent.record_stream import RECORD_SEPARATOR
from allranks.protocol.records import ContainerEnded, encode

STOP_GRACE = 6.0
"""Seconds from the end of standard input, or a SIGTERM, until the agent is killed: its ranks need three to stop."""

FETCH_GRACE = 60.0
"""Seconds that the files stay after the end of standard input: the orchestrator may be dead."""

ISOLATED = ("-I", "-S")
"""Options of Python that keep a suite's modules and installed ones out of a process."""

COMMAND = Path(__file__).with_name("__main__.py")
"""The command of every job."""

_STDIN, _STDOUT = 0, 1


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the agent with these arguments; exit with its status, as a shell encodes it."""
    with suppress(OSError):  # the agent says which features the kernel lacks, and runs no test
        linux.adopt_orphans()
        linux.hide_from_others()
    bell = _bell_of_ended_children()
    agent = subprocess.Popen([sys.executable, *ISOLATED, str(COMMAND), "--contained", *arguments])
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
    status = wait(agent, bell, STOP_GRACE)
    if os.getpid() == 1:
        # At one blow, and in this container alone: processes may start others faster than they could be listed.
        linux.signal_process(-1, signal.SIGKILL)
    end_orphans()
    tell(status, linux.killed_for_memory())
    _wait_for_hangup(FETCH_GRACE)
    os._exit(status if status >= 0 else 128 - status)


def _bell_of_ended_children() -> int:
    """A descriptor that delivers the number of each signal that arrives, SIGCHLD for a child's end included."""
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    return bell


def wait(agent: subprocess.Popen[bytes], bell: int, grace: float) -> int:
    """Wait for the agent's end; kill it if it outlives the grace after the end of standard input, or a SIGTERM."""
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    # Only its end is watched, nothing is read: the data is for the agent.
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


def end_orphans(timeout: float = 2.0) -> None:
    """Kill processes that outlived the agent, so that no file changes while it is fetched.

    Those that cannot be ended are named on standard error: another user's, and those that a driver holds in the kernel.
    """
    deadline = time.monotonic() + timeout
    is_done = False
    while not is_done and (orphans := linux.children()) and time.monotonic() < deadline:
        # Kill all before waiting for any: one that does not end may use up all the time.
        killed = {pid for pid in orphans if linux.signal_process(pid, signal.SIGKILL)}
        for pid in orphans - killed:
            linux.reap(pid, 0.0)
        for pid in killed:
            linux.reap(pid, deadline - time.monotonic())
        is_done = not killed
    for pid in linux.children():
        if process := linux.describe(pid):
            print(f"process {pid} could not be ended: {process.command}", file=sys.stderr)


def tell(status: int, memory_kills: int) -> None:
    """Report the agent's end on standard output; the leading line feed ends any line that was left unfinished there."""
    record = ContainerEnded(at=round(time.time(), 6), status=status, memory_kills=memory_kills)
    try:
        linux.write_all(_STDOUT, b"\n" + RECORD_SEPARATOR + encode(record) + b"\n")
    except OSError:
        return  # the reader is gone


def _wait_for_hangup(grace: float) -> None:
    while os.read(_STDIN, 4096):
        pass
    time.sleep(grace)
