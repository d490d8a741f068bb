"""The engine inside a launch: jobs on one node are processes here, others spread over the launch's."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from allranks.agent.evidence import remove_tree
from allranks.agent.node_files import NodeOrder, write_whole
from allranks.engines.allocation import Allocation
from allranks.engines.base import JobSpec, MakeEnvironment, Progress, RunningJob
from allranks.engines.launch_files import PACKAGE
from allranks.engines.launch_leader import LaunchLeader
from allranks.engines.launched_node import ORDER, LaunchOrder, Variable
from allranks.engines.package import copied_package
from allranks.engines.process import ProcessEngine, environment
from allranks.engines.shared_folder_job import SharedFolderJob, fill_folder
from allranks.engines.slurm_requests import job_name
from allranks.errors import EngineError, counted
from allranks.matrix.model import Matrix
from allranks.ownership import HOST_VARIABLE, RUN_VARIABLE
from allranks.protocol.config import share_of
from allranks.protocol.typed_json import told

_OF_A_NODE: Final = ("TMPDIR", RUN_VARIABLE, HOST_VARIABLE, "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that each node sets for itself; the process that started a supervisor owns it."""


class LaunchEngine(ProcessEngine):
    """Runs the jobs of one node here, and spreads the others over the nodes of a launch.

    Args:
        leader: The session with the other processes of the launcher.
    """

    def __init__(self, leader: LaunchLeader) -> None:
        super().__init__()
        self._leader = leader
        self._shared_package = Path()  # a folder that all nodes share, with the package ``allranks`` and nothing else
        self.nodes = leader.nodes
        self.answer = f"inside a launcher's {counted(self.nodes, 'node')}"

    def prepare(self, matrix: Matrix, progress: Progress, uses: ExitStack | None) -> MakeEnvironment:
        """See :meth:`allranks.engines.base.Engine.prepare`."""
        if self.nodes > 1:
            self._shared_package = copied_package(self._leader.folder / PACKAGE)
        return super().prepare(matrix, progress, uses)

    @contextmanager
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> Iterator[RunningJob]:
        """See :meth:`allranks.engines.base.Engine.start`."""
        started = self._spread(spec) if min(spec.agent.nodes, self.nodes) > 1 else super().start(spec, held)
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
        added = environment(spec, folder, self._shared_package, {})
        count = len(share_of(node, total=spec.agent.gpu_count, nodes=spec.agent.nodes))
        return LaunchOrder(
            python=spec.python or "",
            package=str(self._shared_package),
            variables=tuple(Variable(name=name, value=added[name]) for name in added if name not in _OF_A_NODE),
            gpus=() if node else spec.gpus,
            gpu_count=count if node else 0,
        )
