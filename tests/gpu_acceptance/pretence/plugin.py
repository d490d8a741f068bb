"""A pytest plugin for agents on a host without GPUs: torch says that it has them, and ``device`` is the CPU."""

import pytest
import torch

from gpu_acceptance.pretence.stand_in import StandIn

torch.cuda.is_available = lambda: StandIn().count() > 0
torch.cuda.device_count = StandIn().count


@pytest.fixture(scope="session")
def device() -> torch.device:
    """In the place of allranks' own fixture, which is registered before this one."""
    return StandIn().place(0)
