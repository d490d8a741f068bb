"""A SLURM cluster of isolated nodes on this machine, and what a run has left on its nodes and in its queue.

All nodes share this host's files, and this host sees their processes.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm-cluster"

LATE = 15.0
"""Seconds that SLURM may take to end a job after its last process has reported: it asks its nodes every few."""

DYING = 2.0
"""Seconds for the processes of an ended job to be gone."""

T = TypeVar("T")

_A_JOB = b"allranks-fault-"
"""The beginning of the names of all jobs of faults."""

_OF_SLURM = frozenset({"slurmd", "slurmstepd"})


@contextmanager
def trial_cluster() -> Iterator[None]:
    """A cluster while the context lasts, which the runs of this process use.

    Raises:
        OSError: It does not start.
    """
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="allranks-slurm-", ignore_cleanup_errors=True) as folder:
        variables = {"SLURM_CLUSTER_DIR": folder, "SLURM_CLUSTER_ISOLATED": "yes"}
        try:
            started = _script("start", variables)
            if started.returncode:
                raise OSError(started.stderr.strip())
            with use_cluster(Path(folder)):
                yield
        finally:
            _script("stop", variables)


@contextmanager
def use_cluster(folder: Path) -> Iterator[None]:
    """Have the runs of this process use the cluster in this folder, and look for what they leave there."""
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        yield
    finally:
        del os.environ["SLURM_CONF"]
        os.environ.update({} if before is None else {"SLURM_CONF": before})


def _script(command: str, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **variables}
    return subprocess.run([str(SCRIPT), command], env=environment, capture_output=True, text=True, check=False)


def left_on_cluster(run_id: str) -> list[str]:
    """The processes on the nodes, and the jobs in the queue, that a run which has ended has left; ends them.

    A process without a parent and without the name of a job is that of any run that sees it: no run may leave one.
    """
    inits = inits_of_nodes()
    queued = _once_gone(LATE, lambda: [name for name in _queue() if run_id in name])
    for name in queued:
        _ask("scancel", "--me", f"--name={name}")
    pids = _once_gone(DYING, lambda: list(_of_run(run_id, inits)))
    processes = [f"process {pid} of a node: {_words(pid)}" for pid in pids]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [*(f"job {name} in the queue" for name in queued), *processes]


def inits_of_nodes() -> list[int]:
    """The first process of each node, as this host numbers them."""
    folder = Path(os.environ["SLURM_CONF"]).parent
    return [init for file in folder.glob("n*.pid") for init in _children(int(file.read_text()))]


def _once_gone(seconds: float, look: Callable[[], list[T]]) -> list[T]:
    """What is still seen after this time."""
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _of_run(run_id: str, inits: list[int]) -> Iterator[int]:
    """The living processes of nodes that are a run's, or nobody's any more, whatever they did to get away."""
    nodes = {_link(init, "ns/pid") for init in inits}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError):
            if pid in inits or _link(pid, "ns/pid") not in nodes:
                continue
            state, parent = _stat(pid)
            # The job's folder has the run's name: it is in the working directory, the variables or the command line.
            traces = _link(pid, "cwd").encode(), _bytes(pid, "environ"), _bytes(pid, "cmdline")
            named = [word for word in (run_id.encode(), _A_JOB) if any(word in trace for trace in traces)]
            is_lost = parent in inits and Path(f"/proc/{pid}/comm").read_text().strip() not in _OF_SLURM
            if state != "Z" and (run_id.encode() in named or (is_lost and not named)):
                yield pid


def _queue() -> list[str]:
    return _ask("squeue", "--me", "--noheader", "--format=%j").split()


def _ask(*command: str) -> str:
    """What SLURM answers; on a machine at its limits its controller may end a connection too soon."""
    deadline = time.monotonic() + LATE
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and time.monotonic() < deadline:
            time.sleep(0.5)
            continue
        done.check_returncode()
        return done.stdout


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _stat(pid: int) -> tuple[str, int]:
    state, parent, *_ = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return state, int(parent)


def _link(pid: int, name: str) -> str:
    return str(Path(f"/proc/{pid}/{name}").readlink())


def _bytes(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def _words(pid: int) -> str:
    with suppress(OSError):
        return _bytes(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:200]
    return "ended"
