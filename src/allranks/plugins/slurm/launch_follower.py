"""The processes of a launch other than process 0: each serves its node, and returns the run's exit code."""

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
    HEARTBEAT,
    POLL_INTERVAL,
    SESSION,
    SHARE_REMEDY,
    HeartbeatMonitor,
    LaunchedJob,
    Member,
    Session,
    member_path,
    read_file,
    reject_running_launch,
    unusable_folder,
    write,
)
from allranks.plugins.slurm.shared_folder_job import last_change
from allranks.plugins.slurm.submission import SUPERVISOR
from allranks.protocol.config import TimeLimit, share_of
from allranks.protocol.launcher_variables import outside_of_launchers

_MARGIN: Final = 10.0
"""Seconds by which process 0 may exceed its own limit."""

_GRACE: Final = 12.0
"""Seconds for a supervisor to end: six for its agent, and the rest to kill what the agent left."""


class LaunchedNode:
    """This process on its node, and the supervisors of the node's jobs, which end by themselves when their jobs end.

    Supervisors get a signal when the thread that started them ends, so call all methods in a thread that outlives them.

    Args:
        folder: The folder that all processes of the launch share.
        member: This process.
        inventory: The GPUs of this node.
        environ: The environment of this process.
    """

    def __init__(self, folder: Path, member: Member, inventory: Inventory, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.member = member
        self.path = member_path(folder, member.rank)
        self._inventory = inventory
        self._environ = environ
        self._next_heartbeat = time.monotonic()
        self._started: set[str] = set()
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    def heartbeat(self) -> None:
        """Touch the file of this process if that is due."""
        if (now := time.monotonic()) >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT
            with suppress(OSError):  # if this persists, the others count this process as lost
                os.utime(self.path)

    def update_jobs(self, jobs: Iterable[LaunchedJob]) -> None:
        """Start the supervisors of new jobs, and report supervisors that ended without reporting it themselves."""
        for job in jobs:
            if self.member.rank in job.ranks and job.name not in self._started:
                self._started.add(job.name)
                node = job.ranks.index(self.member.rank)
                node_folder = self.folder / job.name / f"node-{node}"
                try:
                    self._running[node_folder] = self._start(job, node, node_folder)
                except OSError as error:
                    _report(node_folder, f"its supervisor could not be started: {error}")
        for node_folder, supervisor in list(self._running.items()):
            if (status := supervisor.poll()) is not None:
                del self._running[node_folder]
                _report(node_folder, f"its supervisor ended with status {status}")

    def _start(self, job: LaunchedJob, node: int, node_folder: Path) -> subprocess.Popen[bytes]:
        supervisor = Path(job.package, SUPERVISOR)
        with (node_folder / node_files.LOG).open("ab") as log:
            return subprocess.Popen(
                [job.python, *ISOLATED, str(supervisor), str(node_folder.parent), str(node)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=supervisor_environment(job, node, self._inventory, self._environ),
                start_new_session=True,
            )

    def close(self) -> None:
        """End all supervisors, and wait until they have ended."""
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


def _report(node_folder: Path, why: str) -> None:
    """Report that a job's node has ended, unless its supervisor has done so."""
    with suppress(OSError):  # the job is over, and its folder has been removed
        if not (node_folder / node_files.EXIT).exists():
            write_whole(node_folder / node_files.EXIT, json.dumps(asdict(AgentExit(status=None, output=why))))


def supervisor_environment(
    job: LaunchedJob, node: int, inventory: Inventory, environ: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a supervisor: that of its node and of the job, with only the job's GPUs visible."""
    added = dict(variable.split("=", 1) for variable in job.variables)
    inherited = without_rank_variables(outside_of_launchers(environ))
    path = os.pathsep.join(filter(None, (added.get("PYTHONPATH", ""), inherited.get("PYTHONPATH", ""))))
    # The launcher's MASTER_ADDR is an address of node 0.
    address = {node_supervisor.ADDRESS_VARIABLE: environ["MASTER_ADDR"]} if environ.get("MASTER_ADDR") else {}
    return {**inherited, **address, **added, "PYTHONPATH": path, **_visible_gpus(job, node, inventory)}


def _visible_gpus(job: LaunchedJob, node: int, inventory: Inventory) -> dict[str, str]:
    """The variables that make the job's GPUs visible: the leased ones on the lead node, the first ones on the others.

    A node that has too few GPUs shows none.
    """
    gpus = job.gpus
    if node > 0:  # not the lead node
        count = len(share_of(node, total=job.gpu_count, nodes=job.nodes))
        gpus = inventory.gpus[:count] if len(inventory.gpus) >= count else ()
    if inventory.driver == "rocm":
        numbers = ",".join(map(str, inventory.of(gpus).numbers)) or "-1"
        return {"HIP_VISIBLE_DEVICES": numbers, "CUDA_VISIBLE_DEVICES": numbers}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}


def follow(node: LaunchedNode, limits: Limits) -> ExitCode:
    """Take part in the run until process 0 ends it; return its exit code.

    Raises:
        EngineError: Process 0 has not started a run, or is gone.
    """
    reject_running_launch(node.path)
    try:
        code = _take_part(node, limits)
    except OSError as error:
        raise unusable_folder(node.folder, error) from error
    except EngineError:
        with ignore_signals():
            remove_tree(node.folder)  # process 0, which would do this, is gone
        raise
    # Let process 0 end first: after a nonzero exit code, a launcher may kill all remaining processes.
    with ignore_signals():
        _wait_for_removal(member_path(node.folder, 0), limits.silence)
    return code


def _take_part(node: LaunchedNode, limits: Limits) -> ExitCode:
    try:
        _wait_for_session(node, limits.assembly)
        return _serve(node, limits.silence)
    finally:
        with ignore_signals():
            node.close()
            with suppress(OSError):
                node.path.unlink()


def _wait_for_removal(path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while last_change(path) is not None and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL / 5)


def _session(node: LaunchedNode) -> Session | None:
    """The session, if it belongs to this launch."""
    session, member = read_file(node.folder / SESSION, Session), node.member
    is_own = session and member.rank < len(session.nonces) and session.nonces[member.rank] == member.nonce
    return session if is_own else None


def _wait_for_session(node: LaunchedNode, assembly: float) -> None:
    deadline = time.monotonic() + assembly + _MARGIN
    while _session(node) is None:
        if time.monotonic() > deadline:
            msg = f"Process 0 of the launcher has not started a run in {node.folder}."
            limit = TimeLimit(value=assembly, setting="limits.assembly", margin=_MARGIN)
            raise EngineError(msg, why=f"Process {node.member.rank} waited for {limit.words()}.", remedy=SHARE_REMEDY)
        if read_file(node.path, Member) != node.member:
            with suppress(FileNotFoundError):  # process 0 may be emptying the folder
                write(node.path, node.member)
        time.sleep(POLL_INTERVAL)


def _serve(node: LaunchedNode, silence: float) -> ExitCode:
    leader = HeartbeatMonitor(member_path(node.folder, 0), silence)
    while True:
        if session := _session(node):
            if session.exit_code is not None:
                return ExitCode(session.exit_code)
            node.update_jobs(session.jobs)
        if leader.is_lost():
            limit = TimeLimit(value=silence, setting="limits.silence")
            msg = f"Process 0 of the launcher is gone: it sent no heartbeat for {limit.words()}."
            why = f"It should touch its file in {node.folder} until it ends the run."
            raise EngineError(msg, why=why, remedy="See its own output, and continue the run with --resume.")
        node.heartbeat()
        time.sleep(POLL_INTERVAL)
