"""One node of a launch: runs a supervisor for each job in which it takes part."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from allranks.agent import node_files, node_supervisor
from allranks.agent.container_init import ISOLATED
from allranks.agent.node_files import AgentExit, write_whole
from allranks.engines.gpus import Inventory
from allranks.engines.launch_files import Session, read_file
from allranks.engines.process import of_no_rank
from allranks.protocol.launcher_variables import outside_of_launchers

ORDER: Final = "launch.json"
"""File of a node of a job: see :class:`LaunchOrder`."""

_GRACE: Final = 12.0
"""Seconds for a supervisor to end: it gives its agent six, and needs the rest for what that one leaves behind."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable that a job adds to those of its nodes."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """What a node of a job needs to know to start its supervisor."""

    python: str
    package: str  # a folder that all nodes share: it holds the package ``allranks`` and nothing else
    variables: tuple[Variable, ...] = ()  # those of the job; its ``PYTHONPATH`` comes before the node's own
    gpus: tuple[str, ...] = ()  # the ids of its GPUs, if they were leased for it
    gpu_count: int = 0  # how many it takes of its own if none was leased; none of them if it has fewer


class LaunchedNode:
    """The supervisors of one node.

    They get a signal at the end of the thread that starts them: call all methods in one that lasts.

    Args:
        folder: The folder that all processes of the launch share.
        rank: The process that stands for this node.
    """

    def __init__(self, folder: Path, rank: int, inventory: Inventory, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._rank = rank
        self._inventory = inventory
        self._environ = environ
        self._own_folders: dict[str, Path] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ending: dict[str, float] = {}

    def follow(self, session: Session) -> None:
        """Start the supervisors of new jobs, and end those of jobs that are no longer in the session."""
        mine = {job.name: job.ranks.index(self._rank) for job in session.jobs if self._rank in job.ranks}
        for name, node in mine.items():
            if name not in self._own_folders and (order := self._order(name, node)):
                self._own_folders[name] = self._folder / name / f"node-{node}"
                try:
                    self._running[name] = self._start(self._folder / name, node, order)
                except OSError as error:
                    self._report(name, f"its supervisor could not be started: {error}")
        for name, supervisor in list(self._running.items()):
            if (status := supervisor.poll()) is not None:
                del self._running[name]
                self._report(name, f"its supervisor ended with status {status}")
            elif name not in mine:
                self._end(name, supervisor)

    def _order(self, name: str, node: int) -> LaunchOrder | None:
        return read_file(self._folder / name / f"node-{node}" / ORDER, LaunchOrder)

    def _start(self, folder: Path, node: int, order: LaunchOrder) -> subprocess.Popen[bytes]:
        supervisor = Path(order.package, "allranks", "agent", Path(node_supervisor.__file__).name)
        with (folder / f"node-{node}" / node_files.LOG).open("ab") as log:
            return subprocess.Popen(
                [order.python, *ISOLATED, str(supervisor), str(folder), str(node)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables_of(order, self._inventory, self._environ),
                start_new_session=True,
            )

    def _report(self, name: str, why: str) -> None:
        """Report the end of a job's node, unless its supervisor has done so."""
        path = self._own_folders[name] / node_files.EXIT
        with suppress(OSError):  # the job is over, and its folder removed
            if not path.exists():
                write_whole(path, json.dumps(asdict(AgentExit(status=None, output=why))))

    def _end(self, name: str, supervisor: subprocess.Popen[bytes]) -> None:
        """Ask it to end, and kill it when it had its time."""
        deadline = self._ending.get(name)
        if deadline is None:
            self._ending[name] = time.monotonic() + _GRACE
            supervisor.terminate()
        elif time.monotonic() > deadline:
            supervisor.kill()

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


def variables_of(order: LaunchOrder, inventory: Inventory, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a supervisor: those of its node and of the job; of the GPUs, the job's own alone."""
    added = {variable.name: variable.value for variable in order.variables}
    own = of_no_rank(outside_of_launchers(environ))
    path = os.pathsep.join(filter(None, (added.get("PYTHONPATH", ""), own.get("PYTHONPATH", ""))))
    # By this address, which only node 0 has, the launcher lets its own processes meet.
    address = {node_supervisor.ADDRESS_VARIABLE: environ["MASTER_ADDR"]} if environ.get("MASTER_ADDR") else {}
    return {**own, **address, **added, "PYTHONPATH": path, **_visible(order, inventory)}


def _visible(order: LaunchOrder, inventory: Inventory) -> dict[str, str]:
    there = inventory.gpus if len(inventory.gpus) >= order.gpu_count else ()
    gpus = order.gpus or there[: order.gpu_count]
    if inventory.driver == "rocm":
        numbers = ",".join(map(str, inventory.of(gpus).numbers)) or "-1"
        return {"HIP_VISIBLE_DEVICES": numbers, "CUDA_VISIBLE_DEVICES": numbers}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
