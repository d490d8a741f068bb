"""The default process group is the one that the cell asks for."""

import os
import socket

import pytest
import torch.distributed as dist

from .tensors import everyone

pytestmark = pytest.mark.conformance(operation="process group")


def test_ranks_are_those_of_the_cell(process_group: dist.ProcessGroup, rank: int, world_size: int) -> None:
    """What torch counts is what the harness was told."""
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
    assert (process_group.rank(), process_group.size()) == (rank, world_size)


@pytest.mark.usefixtures("device")
def test_every_rank_is_there_once(world_size: int) -> None:
    """Each rank is a process of its own, in the order of the ranks."""
    ranks_and_processes = everyone((dist.get_rank(), socket.gethostname(), os.getpid()))
    assert [rank for rank, _, _ in ranks_and_processes] == list(range(world_size))
    assert len({(host, process) for _, host, process in ranks_and_processes}) == world_size


def test_backend_is_that_of_the_cell(process_group: dist.ProcessGroup, backend: str) -> None:
    """Nothing was chosen by default."""
    assert dist.get_backend(process_group) == backend
