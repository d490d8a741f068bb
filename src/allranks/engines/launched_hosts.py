"""The nodes of a launcher as an engine: what a run inside an allocation connects to."""

from contextlib import ExitStack

from allranks.engines.base import Engine
from allranks.engines.kind import MakeEnvironment, Progress
from allranks.engines.launch_engine import LaunchEngine
from allranks.engines.launch_files import PACKAGE
from allranks.engines.launch_leader import LaunchLeader
from allranks.engines.package import copied_package, package_path
from allranks.engines.process_environments import ConnectedProcesses
from allranks.errors import counted
from allranks.matrix.model import Matrix
from allranks.user_cache import cache_folder


class ConnectedLaunch(ConnectedProcesses):
    """See :class:`allranks.engines.kind.ConnectedEngine`.

    Args:
        leader: The session with the launcher's other processes; None if there are none.
    """

    def __init__(self, leader: LaunchLeader | None) -> None:
        self._leader = leader
        self.nodes = leader.nodes if leader else 1
        self.answer = f"inside a launcher's {counted(self.nodes, 'node')}"

    def engine_for(self, matrix: Matrix, progress: Progress, uses: ExitStack | None) -> tuple[Engine, MakeEnvironment]:
        """See :meth:`allranks.engines.kind.ConnectedEngine.engine_for`."""
        engine, make = super().engine_for(matrix, progress, uses)
        if self._leader is not None and self.nodes > 1:
            shared = copied_package(self._leader.folder / PACKAGE)
            engine = LaunchEngine(package_path(cache_folder() / "package"), self._leader, shared)
        return engine, make
