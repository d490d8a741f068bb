"""The ranks of a test as one value."""

import pytest
import torch

from .reference import World


@pytest.fixture
def world(rank: int, world_size: int, device: torch.device) -> World:
    """The ranks, and the data that each of them has."""
    return World(rank, world_size, device)
