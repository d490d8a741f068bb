"""A node: where some ranks of each gang are started. This one starts them by forking the process that it is in."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, Protocol

import pytest
import torch

from allranks.harness import kernel
from allranks.harness.collection.hardware import missing_hardware
from allranks.harness.config import AgentConfig, Folders
from allranks.harness.gangs.crew import Crew, LocalCrew, stack_files
from allranks.harness.gangs.late_imports import preload
from allranks.harness.gangs.rank_process import Echo, fork_ranks
from allranks.harness.launchers.driver import DRIVER, Launching, driver_folder, run_driver
from allranks.harness.ranks.rank import Assignment, run_rank
from allranks.harness.stacks.flight_recorder import FlightRecorder
from allranks.testing.skips.torch_table import installed_skips


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What the ranks of one gang are started for, the same on every node; made of JSON's types alone.

    Attributes:
        gang: Number of the gang in its job, from 1.
        url: What ``init_process_group`` takes as ``init_method``; None for a gang without a process group.
        environment: Variables that the ranks need to meet.
        first_test: Node id of the first test: a process group that cannot be made is an error of this one.
        launches: The gang is a driver, which starts the ranks of its tests itself.
        preload: Modules that ranks before these imported late: imported once before the fork, they cost no rank again.
    """

    gang: int
    url: str | None
    environment: dict[str, str] = field(default_factory=dict)
    first_test: str
    launches: bool = False
    preload: Sequence[str] = ()


class NodeLostError(Exception):
    """The agent of a node does not answer any more, and cannot come back.

    Args:
        node: The node.
        how: What became of the agent, as in "is gone".

    Attributes:
        node: The node.
    """

    def __init__(self, node: int, how: str) -> None:
        super().__init__(f"The agent of node {node} {how}.")
        self.node = node


class Node(Protocol):
    """Starts the ranks of each gang that belong to one node."""

    def muster(self, orders: Orders) -> Crew:
        """Start this node's ranks of a gang.

        Raises:
            OSError: They cannot be started; none of them is left.
            NodeLostError: Nobody is there who could start them.
        """


def muster_all(nodes: Iterable[Node], orders: Orders) -> list[Crew]:
    """Start the ranks of a gang on all nodes.

    Raises:
        OSError: One node cannot start its ranks; no rank is left on any.
        NodeLostError: One node is lost; no rank is left on the others.
    """
    crews: list[Crew] = []
    try:
        for node in nodes:
            crews.append(node.muster(orders))  # noqa: PERF401 - those that there are have to be ended when one fails
    except (OSError, NodeLostError):
        for crew in crews:
            crew.kill(crew.ranks)
            crew.close()
        raise
    return crews


class LocalNode:
    """Forks ranks off this process, which has collected the tests.

    Args:
        session: pytest's session.
        config: The job.
        folders: Its folders.
        ranks: The numbers of this node's ranks.
        echo: Gets each line that ranks print; None for nobody.
    """

    def __init__(
        self,
        session: pytest.Session,
        config: AgentConfig,
        folders: Folders,
        ranks: Sequence[int],
        echo: Echo | None,
    ) -> None:
        self._session = session
        self._config = config
        self._folders = folders
        self._ranks = ranks
        self._echo = echo
        self._hardware_skip = missing_hardware(config)

    def muster(self, orders: Orders) -> LocalCrew:
        """See :meth:`Node.muster`."""
        shared = self._folders.shared / f"gang-{orders.gang}"
        shared.mkdir(exist_ok=True)
        if orders.launches:
            preload(orders.preload)
            return self._muster_driver(orders, shared)
        recorder = self._recorder(orders, shared)
        recording = recorder.environment(torch.__version__, os.environ) if recorder else {}
        orders = replace(orders, environment={**orders.environment, **recording})
        preload(orders.preload)
        known = kernel.children()
        stacks = stack_files(self._folders.results, self._ranks)
        ranks = fork_ranks(self._ranks, self._rank_body(orders, shared), self._echo)
        return LocalCrew(ranks, self._folders.results, known, recorder, stacks=stacks)

    def _muster_driver(self, orders: Orders, shared: Path) -> LocalCrew:
        # Read once here, and not by each driver whose ranks have all ended.
        installed_skips()
        known = kernel.children()
        folder = driver_folder(self._folders.results)
        folder.mkdir(exist_ok=True)
        stacks = stack_files(folder, [DRIVER])
        return LocalCrew(fork_ranks([DRIVER], self._driver_body(orders, shared)), folder, known, stacks=stacks)

    def _driver_body(self, orders: Orders, shared: Path) -> Callable[[int, int, int], NoReturn]:
        def be_driver(_number: int, commands: int, reports: int) -> NoReturn:
            launching = Launching(results=self._folders.results, echo=self._echo)
            run_driver(self._session, self._assignment(DRIVER, orders, shared, (commands, reports)), launching)

        return be_driver

    def _recorder(self, orders: Orders, shared: Path) -> FlightRecorder | None:
        """Torch's flight recorder of this gang; only NCCL has one that is of use when ranks hang."""
        if self._config.backend != "nccl" or self._hardware_skip is not None:
            return None
        return FlightRecorder(results=self._folders.results, shared=shared, gang=orders.gang)

    def _rank_body(self, orders: Orders, shared: Path) -> Callable[[int, int, int], NoReturn]:
        def be_rank(rank: int, commands: int, reports: int) -> NoReturn:
            run_rank(self._session, self._assignment(rank, orders, shared, (commands, reports)))

        return be_rank

    def _assignment(self, rank: int, orders: Orders, shared: Path, pipes: tuple[int, int]) -> Assignment:
        commands, reports = pipes
        return Assignment(
            config=self._config,
            rank=rank,
            local_ranks=self._ranks,
            gang=orders.gang,
            url=None if self._hardware_skip else orders.url,
            environment=orders.environment,
            hardware_skip=self._hardware_skip,
            first_test=orders.first_test,
            results=self._folders.results,
            shared=shared,
            commands=commands,
            reports=reports,
        )
