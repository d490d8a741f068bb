"""The first process of a container: it keeps the job's in-memory files until the host has fetched them.

It starts the agent, waits for its end, kills leftover processes, reports the end, and keeps running until the files
have been fetched and the host removes the container. The agent shares its standard input and output.
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
"""Seconds from the end of standard input, or a SIGTERM, until the agent is killed: its ranks need 3 s to stop."""

FETCH_GRACE = 60.0
"""Seconds to keep the files after the end of standard input: a dead host process never fetches them."""

ISOLATED = ("-I", "-S")
"""Python options that keep the suite's modules and installed packages out of a process."""

COMMAND = Path(__file__).with_name("__main__.py")
"""The entry point of every job."""

_STDIN, _STDOUT = 0, 1


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the agent with these arguments and exit with its status, encoded as by a shell."""
    with suppress(OSError):  # the agent reports the missing kernel feature and runs no test
        linux.adopt_orphans()
        linux.hide_from_others()
    wakeup = _signal_wakeup_descriptor()
    agent = subprocess.Popen([sys.executable, *ISOLATED, str(COMMAND), "--contained", *arguments])
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
    status = wait(agent, wakeup, STOP_GRACE)
    if os.getpid() == 1:
        # All processes of the container at once: they may start others faster than they can be listed.
        linux.signal_process(-1, signal.SIGKILL)
    end_orphans()
    report_end(status, linux.killed_for_memory())
    _wait_for_end_of_stdin(FETCH_GRACE)
    os._exit(status if status >= 0 else 128 - status)


def _signal_wakeup_descriptor() -> int:
    """A descriptor that delivers the number of each signal that arrives, including SIGCHLD."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def wait(agent: subprocess.Popen[bytes], wakeup: int, grace: float) -> int:
    """Wait for the agent's end; kill it if it outlives the grace after the end of standard input, or a SIGTERM."""
    poll = select.poll()
    poll.register(wakeup, select.POLLIN)
    # Watch only for its end, because the agent reads the data.
    poll.register(_STDIN, 0)
    deadline: float | None = None
    while agent.poll() is None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = {descriptor for descriptor, _ in poll.poll(None if left is None else left * 1000)}
        signals = os.read(wakeup, 4096) if wakeup in ready else b""
        if _STDIN in ready:
            poll.unregister(_STDIN)
        if deadline is None and (_STDIN in ready or signal.SIGTERM in signals):
            deadline = time.monotonic() + grace
        if left == 0.0:
            agent.kill()
            return agent.wait()
    return agent.returncode


def end_orphans(timeout: float = 2.0) -> None:
    """Kill processes that outlived the agent, so that no file changes while it is fetched.

    Processes that cannot be killed (another user's, or stuck in a driver) are listed on standard error.
    """
    deadline = time.monotonic() + timeout
    is_done = False
    while not is_done and (orphans := linux.children()) and time.monotonic() < deadline:
        # Kill all before waiting for any: one that does not end may take all the time.
        killed = {pid for pid in orphans if linux.signal_process(pid, signal.SIGKILL)}
        for pid in orphans - killed:
            linux.reap(pid, 0.0)
        for pid in killed:
            linux.reap(pid, deadline - time.monotonic())
        is_done = not killed
    for pid in linux.children():
        if process := linux.describe(pid):
            print(f"process {pid} could not be killed: {process.command}", file=sys.stderr)


def report_end(status: int, memory_kills: int) -> None:
    """Report the agent's end on standard output; the leading line feed ends a line that may be unfinished there."""
    record = ContainerEnded(at=round(time.time(), 6), status=status, memory_kills=memory_kills)
    try:
        linux.write_all(_STDOUT, b"\n" + RECORD_SEPARATOR + encode(record) + b"\n")
    except OSError:
        return  # the reader is gone


def _wait_for_end_of_stdin(grace: float) -> None:
    while os.read(_STDIN, 4096):
        pass
    time.sleep(grace)
