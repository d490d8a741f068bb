"""The engine inside a launch: jobs on one node are processes here, others spread over the launch's."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from allranks.agent.evidence import remove_tree
from allranks.agent.node_files import NodeOrder, write_whole
from allranks.engines.allocation import Allocation
from allranks.engines.base import JobSpec, RunningJob
from allranks.engines.launch_leader import LaunchLeader
from allranks.engines.launched_node import ORDER, LaunchOrder, Variable
from allranks.engines.process import ProcessEngine, environment
from allranks.engines.shared_folder_job import SharedFolderJob, fill_folder
from allranks.engines.slurm_requests import job_name
from allranks.errors import EngineError
from allranks.ownership import HOST_VARIABLE, RUN_VARIABLE
from allranks.protocol.config import share_of
from allranks.protocol.typed_json import told

_OF_A_NODE: Final = ("TMPDIR", RUN_VARIABLE, HOST_VARIABLE, "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that each node sets for itself; the process that started a supervisor owns it."""


class LaunchEngine(ProcessEngine):
    """Runs the jobs of one node here, and spreads the others over the nodes of a launch.

    Args:
        own_package: A folder that holds the package ``allranks`` and nothing else, for jobs here.
        package: Another one, which all nodes share.
    """

    def __init__(self, own_package: Path, leader: LaunchLeader, package: Path) -> None:
        super().__init__(own_package)
        self._leader = leader
        self._package = package

    @contextmanager
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> Iterator[RunningJob]:
        """See :meth:`allranks.engines.base.Engine.start`."""
        started = self._spread(spec) if spec.agent.nodes > 1 else super().start(spec, held)
        with started as job:
            yield job

    @contextmanager
    def _spread(self, spec: JobSpec) -> Iterator[SharedFolderJob]:
        """Start a job on several nodes, one agent on each."""
        folder = self._leader.folder / job_name(spec)
        try:
            self._fill(folder, spec)
            self._leader.submit(folder.name, spec.agent.nodes)
            job = SharedFolderJob(Allocation(self._leader, folder), spec)
            try:
                yield job
            finally:
                job.stop()
                job.close()
        finally:
            self._leader.forget(folder.name)
            remove_tree(folder)

    def _fill(self, folder: Path, spec: JobSpec) -> None:
        try:
            folder.mkdir(mode=0o700)
            fill_folder(folder, spec, NodeOrder(python=spec.python or "", code=str(spec.code)))
            for node in range(spec.agent.nodes):
                order = json.dumps(told(self._order(folder, spec, node)))
                write_whole(folder / f"node-{node}" / ORDER, order)
        except OSError as error:
            msg = f"A folder for {spec.job_id} could not be made in {folder.parent}."
            raise EngineError(msg, why=str(error), remedy="Free some space there.") from error

    def _order(self, folder: Path, spec: JobSpec, node: int) -> LaunchOrder:
        added = environment(spec, folder, self._package, {})
        count = len(share_of(node, total=spec.agent.gpu_count, nodes=spec.agent.nodes))
        return LaunchOrder(
            python=spec.python or "",
            package=str(self._package),
            variables=tuple(Variable(name=name, value=added[name]) for name in added if name not in _OF_A_NODE),
            gpus=() if node else spec.gpus,
            gpu_count=count if node else 0,
        )
