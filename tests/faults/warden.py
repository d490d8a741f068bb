"""Runs one command, and reports all descendants that it left running.

    python warden.py REPORT [--disk FOLDER MIB] [--memory MIB] -- COMMAND...

The report is JSON: the command's exit status, and the command lines of the processes that were left, which are killed.
As a subreaper, this process becomes the parent of every orphaned descendant, so neither a double fork nor a new session
nor an empty environment hides one. It is a separate process because a test runner may have other children.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DYING = 2.0
"""Seconds for processes that were killed at the end to be gone."""

_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = (1 << 14) | (1 << 18)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("--disk", nargs=2, metavar=("FOLDER", "MIB"))
    parser.add_argument("--memory", type=int, metavar="MIB")
    # argparse would also split at a second --, which belongs to the command.
    index = sys.argv.index("--")
    options, command = parser.parse_args(sys.argv[1:index]), sys.argv[index + 1 :]
    adopt_orphans()
    if options.disk:
        _mount_small_disk(*options.disk)
    group = _memory_group(options.memory) if options.memory else None
    enter = None if group is None else lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    status = subprocess.run(command, preexec_fn=enter, check=False).returncode
    left = end_descendants()
    options.report.write_text(json.dumps({"status": status, "left": left}))
    if group is not None:
        group.rmdir()


def adopt_orphans() -> None:
    """Make this process the parent of every orphaned descendant."""
    _check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _mount_small_disk(folder: str, mib: str) -> None:
    """Mount a disk that only this process and its descendants see, and that disappears with them."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS))
    _check(libc.mount(None, b"/", None, _MS_REC_PRIVATE, None))
    _check(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={mib}m".encode()))


def _memory_group(mib: int) -> Path:
    """A control group below this process's own, with a limit on memory (cgroups(7), version 1 and 2)."""
    for root, limits in (
        ("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
        ("/sys/fs/cgroup", ("memory.max", "memory.swap.max")),
    ):
        group = Path(root) / f"allranks-fault-{os.getpid()}"
        if not Path(root, "cgroup.procs").exists():
            continue
        group.mkdir()
        if not (group / limits[0]).exists():
            group.rmdir()
            continue
        (group / limits[0]).write_text(str(mib << 20))
        if (group / limits[1]).exists():
            (group / limits[1]).write_text("0" if limits[1] == "memory.swap.max" else str(mib << 20))
        return group
    msg = "there is no control group for memory"
    raise OSError(msg)


def end_descendants() -> list[str]:
    """Kill the descendants that do not end by themselves at once, and return their command lines."""
    deadline = time.monotonic() + DYING
    while _reap() and time.monotonic() < deadline:
        time.sleep(0.01)
    found = []
    while pids := _reap():
        for pid in pids:
            found.append(f"{pid}: {_command(pid)}")
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
    return found


def _reap() -> list[int]:
    """Reap all dead children, and return the living ones."""
    alive = []
    for pid in _children():
        dead, _ = os.waitpid(pid, os.WNOHANG)
        if not dead:
            alive.append(pid)
    return alive


def _children() -> list[int]:
    own = os.getpid()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _parent(pid) == own]


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat.rpartition(b")")[2].split()[1])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]


if __name__ == "__main__":
    sys.exit(main())
