"""The ranks of a test as one value."""

import pytest
import torch

from .reference import World


@pytest.fixture
def world(rank: int, world_size: int, device: torch.device) -> World:
    """The ranks, and the data that each of them has; all random numbers of torch are the same in every run."""
    torch.default_generator.manual_seed(1)  # torch.manual_seed takes 0.7 ms
    return World(rank, world_size, device)
