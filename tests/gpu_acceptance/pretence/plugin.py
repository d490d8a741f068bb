"""A pytest plugin for agents on a host without GPUs: torch says that it has them, and ``device`` is the CPU."""

from types import SimpleNamespace

import pytest
import torch

from gpu_acceptance.pretence.stand_in import StandIn

torch.cuda.is_available = lambda: StandIn().count() > 0
torch.cuda.device_count = StandIn().count
torch.cuda.current_device = lambda: 0
torch.cuda.get_device_properties = lambda _device=None: SimpleNamespace(name="H100", major=9, minor=0)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """In the place of allranks' own fixture, which is registered before this one."""
    return StandIn().place(0)
