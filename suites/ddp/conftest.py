"""The ranks of a test as one value, and torch.distributed's log."""

import logging
from collections.abc import Iterator

import pytest
import torch

from .reference import World


@pytest.fixture
def world(rank: int, world_size: int, device: torch.device) -> World:
    """The ranks, and the data that each of them has; all random numbers of torch are the same in every run."""
    torch.default_generator.manual_seed(1)  # torch.manual_seed takes 0.7 ms
    return World(rank, world_size, device)


@pytest.fixture
def distributed_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What torch.distributed logs: its loggers do not hand on to the one that pytest listens to."""
    logger = logging.getLogger("torch.distributed")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
