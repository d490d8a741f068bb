"""A process of a launch other than process 0: serves its node, and ends as the run does."""

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from allranks.agent.container_init import ISOLATED
from allranks.agent.evidence import remove_tree
from allranks.engines.gpus import Inventory
from allranks.engines.process import without_rank_variables
from allranks.errors import EngineError, ExitCode
from allranks.interruption import ignore_signals
from allranks.matrix.model import Limits
from allranks.plugins.slurm.agent import node_files, node_supervisor
from allranks.plugins.slurm.agent.node_files import AgentExit, write_whole
from allranks.plugins.slurm.launch_files import (
    BEAT,
    LOOK_AGAIN,
    SESSION,
    SHARE,
    LaunchedJob,
    Member,
    Pulse,
    Session,
    path_of,
    read_file,
    refuse_living,
    unusable,
    write,
)
from allranks.plugins.slurm.shared_folder_job import last_change
from allranks.plugins.slurm.submission import SUPERVISOR
from allranks.protocol.config import TimeLimit, share_of
from allranks.protocol.launcher_variables import outside_of_launchers

_LATER: Final = 10.0
"""Seconds that process 0 may take longer than its own limit."""

_GRACE: Final = 12.0
"""Seconds for a supervisor to end: it gives its agent six, and needs the rest for processes that the agent left."""


class LaunchedNode:
    """This process on its node, with the supervisors of jobs, which end by themselves when their jobs do.

    Supervisors get a signal at the end of the thread that starts them: call all methods in one that lasts.

    Args:
        folder: The folder that all processes of the launch share.
        member: The process that stands for this node.
        inventory: The GPUs of this node.
        environ: The variables of this process.
    """

    def __init__(self, folder: Path, member: Member, inventory: Inventory, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.member = member
        self.path = path_of(folder, member.rank)
        self._inventory = inventory
        self._environ = environ
        self._next_beat = time.monotonic()
        self._seen: set[str] = set()
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    def beat(self) -> None:
        """Touch the file of this process if that is due."""
        if (now := time.monotonic()) >= self._next_beat:
            self._next_beat = now + BEAT
            with suppress(OSError):  # the others count this process as lost if that lasts
                os.utime(self.path)

    def follow(self, jobs: Iterable[LaunchedJob]) -> None:
        """Start the supervisors of new jobs, and report those that have ended without a report of their own."""
        for job in jobs:
            if self.member.rank in job.ranks and job.name not in self._seen:
                self._seen.add(job.name)
                node = job.ranks.index(self.member.rank)
                own = self.folder / job.name / f"node-{node}"
                try:
                    self._running[own] = self._start(job, node, own)
                except OSError as error:
                    _report(own, f"its supervisor could not be started: {error}")
        for own, supervisor in list(self._running.items()):
            if (status := supervisor.poll()) is not None:
                del self._running[own]
                _report(own, f"its supervisor ended with status {status}")

    def _start(self, job: LaunchedJob, node: int, own: Path) -> subprocess.Popen[bytes]:
        supervisor = Path(job.package, SUPERVISOR)
        with (own / node_files.LOG).open("ab") as log:
            return subprocess.Popen(
                [job.python, *ISOLATED, str(supervisor), str(own.parent), str(node)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables_of(job, node, self._inventory, self._environ),
                start_new_session=True,
            )

    def close(self) -> None:
        """End all supervisors, and wait for their ends."""
        deadline = time.monotonic() + _GRACE
        for supervisor in self._running.values():
            supervisor.terminate()
        for supervisor in self._running.values():
            try:
                supervisor.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()
        self._running.clear()


def _report(own: Path, why: str) -> None:
    """Report the end of a job's node, unless its supervisor has done so."""
    with suppress(OSError):  # the job is over, and its folder removed
        if not (own / node_files.EXIT).exists():
            write_whole(own / node_files.EXIT, json.dumps(asdict(AgentExit(status=None, output=why))))


def variables_of(job: LaunchedJob, node: int, inventory: Inventory, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a supervisor: those of its node and of the job; of the GPUs, only the job's own."""
    added = dict(variable.split("=", 1) for variable in job.variables)
    own = without_rank_variables(outside_of_launchers(environ))
    path = os.pathsep.join(filter(None, (added.get("PYTHONPATH", ""), own.get("PYTHONPATH", ""))))
    # By this address, which only node 0 has, the launcher lets its own processes meet.
    address = {node_supervisor.ADDRESS_VARIABLE: environ["MASTER_ADDR"]} if environ.get("MASTER_ADDR") else {}
    return {**own, **address, **added, "PYTHONPATH": path, **_visible(job, node, inventory)}


def _visible(job: LaunchedJob, node: int, inventory: Inventory) -> dict[str, str]:
    """The variables that show the job its GPUs: those that were leased for it, or the first ones of another node.

    A node that has too few shows none.
    """
    gpus = job.gpus
    if node:
        count = len(share_of(node, total=job.gpu_count, nodes=job.nodes))
        gpus = inventory.gpus[:count] if len(inventory.gpus) >= count else ()
    if inventory.driver == "rocm":
        numbers = ",".join(map(str, inventory.of(gpus).numbers)) or "-1"
        return {"HIP_VISIBLE_DEVICES": numbers, "CUDA_VISIBLE_DEVICES": numbers}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}


def follow(node: LaunchedNode, limits: Limits) -> ExitCode:
    """Take part in the run until process 0 ends it; return its exit code.

    Raises:
        EngineError: Process 0 has not come, or is gone.
    """
    refuse_living(node.path)
    code = None
    try:
        _wait_for_session(node, limits.assembly)
        code = _serve(node, limits.silence)
    except OSError as error:
        raise unusable(node.folder, error) from error
    except EngineError:
        with ignore_signals():
            node.close()
            remove_tree(node.folder)  # there is no process 0 that would
        raise
    finally:
        with ignore_signals():
            node.close()
            with suppress(OSError):
                node.path.unlink()
            # Process 0 ends first: a launcher that sees a bad end may end all that are left.
            deadline = time.monotonic() + limits.silence
            first = path_of(node.folder, 0)
            while code is not None and last_change(first) is not None and time.monotonic() < deadline:
                time.sleep(LOOK_AGAIN / 5)
    return code


def _session(node: LaunchedNode) -> Session | None:
    """The session, if it is that of this launch."""
    session, own = read_file(node.folder / SESSION, Session), node.member
    return session if session and session.nonces[own.rank : own.rank + 1] == (own.nonce,) else None


def _wait_for_session(node: LaunchedNode, assembly: float) -> None:
    deadline = time.monotonic() + assembly + _LATER
    while _session(node) is None:
        if time.monotonic() > deadline:
            msg = f"Process 0 of the launcher has not begun a run in {node.folder}."
            limit = TimeLimit(value=assembly, setting="limits.assembly", margin=_LATER)
            raise EngineError(msg, why=f"Process {node.member.rank} waited for {limit.words()}.", remedy=SHARE)
        if read_file(node.path, Member) != node.member:
            with suppress(FileNotFoundError):  # process 0 is just emptying the folder
                write(node.path, node.member)
        time.sleep(LOOK_AGAIN)


def _serve(node: LaunchedNode, silence: float) -> ExitCode:
    pulse = Pulse(path_of(node.folder, 0), silence)
    while True:
        if session := _session(node):
            if session.exit_code is not None:
                return ExitCode(session.exit_code)
            node.follow(session.jobs)
        if pulse.is_lost():
            limit = TimeLimit(value=silence, setting="limits.silence")
            msg = f"Process 0 of the launcher is gone: it gave no sign of life for {limit.words()}."
            why = f"It has to touch its file in {node.folder}, and to end the run."
            raise EngineError(msg, why=why, remedy="See its own output; go on with --resume.")
        node.beat()
        time.sleep(LOOK_AGAIN)
