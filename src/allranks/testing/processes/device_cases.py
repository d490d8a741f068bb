"""Test cases that make a process group for the kind of device they test, also for ``torch.compile``."""

import unittest
from typing import ClassVar, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.testing.environment import RankEnvironment, accelerator_count
from allranks.testing.markers import plain_mark
from allranks.testing.process_cases import MultiProcessTestCase, RankPipe, destroy_group
from allranks.testing.settings import fresh_dynamo
from allranks.testing.tensors import TensorEquality


def _device_at(place: int) -> torch.device:
    """The accelerator of a rank, which ranks share in turn if there are too few, or the CPU without any."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, place % torch.accelerator.device_count())


class DistributedTestBase(MultiProcessTestCase):
    """A :class:`MultiProcessTestCase` that starts its ranks in ``setUp``; a test makes its group by :meth:`create_pg`.

    Attributes that a subclass sets in ``setUp`` are those of the launching process: a rank does not have them.
    """

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._spawn_processes()

    def backend(self, device: str | torch.device) -> str:
        """The backend for tensors on a device, such as ``"nccl"`` for ``"cuda"``."""
        return dist.get_default_backend_for_device(torch.device(device).type)

    def create_pg(self, device: str | torch.device, world_size: int | None = None) -> dist.ProcessGroup:
        """Create the default process group; with an accelerator, this rank's own becomes its default device.

        Args:
            device: The kind of device, such as ``"cuda"``.
            world_size: The number of ranks that call this; None for all.
        """
        size = self.world_size if world_size is None else world_size
        kind = torch.device(device).type
        if kind != "cpu":
            own = torch.device(kind, *self.rank_to_device(kind)[self.rank])
            torch.accelerator.set_device_index(own.index)
            torch.set_default_device(own)
        store = FileStore(self.file_name, size)
        dist.init_process_group(self.backend(kind), world_size=size, rank=self.rank, store=store)
        if kind == "cpu":
            # Else the first connected rank could end its test while its peers still connect, which then fails (gloo).
            dist.barrier()
        return cast("dist.ProcessGroup", dist.group.WORLD)

    def rank_to_device(self, device: str | torch.device) -> dict[int, list[int]]:
        """The index of each rank's device; ranks share devices in turn if there are too few."""
        present = torch.get_device_module(torch.device(device).type).device_count()
        return {rank: [rank % present] for rank in range(self.world_size)}


class DynamoDistributedMultiProcTestCase(DistributedTestBase):
    """Tests of ``torch.compile`` on several ranks: each is a process with a process group and an empty Dynamo.

    Ranks are forks, so each forgets what the launching process has compiled. Two ranks run on the CPU over gloo if
    there is no accelerator.
    """

    init_pg: ClassVar[bool] = True
    """Whether each rank creates the default process group before the test; else the test does."""

    @property
    def world_size(self) -> int:
        """A rank for each accelerator; 2 without any. Override it to change that."""
        return accelerator_count() or 2

    @property
    def device(self) -> str:
        """This rank's device."""
        return str(_device_at(self.rank))

    def run_test(self, test_name: str, parent_pipe: RankPipe) -> None:
        """Run one test in this rank, with its process group, and Dynamo's caches and counters empty."""
        with fresh_dynamo():
            if self.init_pg:
                self.create_pg(self.device)
            super().run_test(test_name, parent_pipe)


class DynamoDistributedSingleProcTestCase(TensorEquality, unittest.TestCase):
    """Tests of ``torch.compile`` in one process, which is the only rank of a default process group.

    The class makes the group, and destroys it after its last test, or where ``setUpClass`` fails. Each test starts
    with Dynamo's caches and counters empty, and empties them, also if ``setUp`` or the test fails. A test that destroys
    the group leaves a new one to the next. Under ``allranks run`` each rank of the cell runs the tests, alone.
    """

    # Its only rank has its own world, so an agent need not create one.
    pytestmark: ClassVar[pytest.MarkDecorator] = plain_mark("no_process_group")

    rank: ClassVar[int] = 0
    """The rank in the group."""

    device: ClassVar[str] = "cpu"
    """This process's accelerator, or the CPU without any."""

    device_ids: ClassVar[list[int] | None] = None
    """For DDP, which finds the device by the model's parameters."""

    @classmethod
    def setUpClass(cls) -> None:
        """Create the process group."""
        super().setUpClass()
        cls.addClassCleanup(destroy_group)
        cls._join_alone()

    def setUp(self) -> None:
        """Empty Dynamo's caches and counters, now and after the test."""
        super().setUp()
        if not dist.is_initialized():
            self._join_alone()
        self.enterContext(fresh_dynamo())

    @classmethod
    def _join_alone(cls) -> None:
        own = _device_at(RankEnvironment.read().local_rank)
        cls.device = str(own)
        if own.index is not None:
            torch.accelerator.set_device_index(own.index)
        backend = dist.get_default_backend_for_device(own.type)
        dist.init_process_group(backend, store=HashStore(), rank=cls.rank, world_size=1)
