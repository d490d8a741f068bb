"""The ranks of a test as one value, and torch.distributed's log."""

import logging
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from .reference import World


@pytest.fixture
def world(rank: int, world_size: int, device: torch.device) -> World:
    """The ranks, and the data that each of them has; all random numbers of torch are the same in every run."""
    torch.default_generator.manual_seed(1)  # torch.manual_seed takes 0.7 ms
    return World(rank, world_size, device)


@pytest.fixture
def own_group(rank: int, process_group: dist.ProcessGroup) -> Iterator[dist.ProcessGroup]:  # noqa: ARG001 - before it
    """A group of this rank alone: each rank makes only its own, which takes no collective."""
    group = dist.new_group([rank], use_local_synchronization=True)
    yield group
    dist.destroy_process_group(group)


@pytest.fixture
def distributed_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What torch.distributed logs: its loggers do not hand on to the one that pytest listens to."""
    logger = logging.getLogger("torch.distributed")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
