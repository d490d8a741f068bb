"""What is inside a job's container, and what is not. Needs nothing but torch and pytest: the image is the user's."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

PRETENDS = "GPU_ACCEPTANCE_PRETENDS" in os.environ
LEASED = os.environ.get("NVIDIA_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES", "")


def test_the_leased_gpu_is_the_only_one():
    assert torch.cuda.device_count() == 1
    assert LEASED.startswith("GPU-")
    assert "," not in LEASED
    if not PRETENDS:
        assert str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-") == LEASED.removeprefix("GPU-")


def test_the_gpu_computes(rank, world_size, device):
    tensor = torch.full((1000,), rank + 1.0, device=device)
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [world_size * (world_size + 1) / 2]


def test_no_other_gpu_has_a_device_node():
    assert len(list(Path("/dev").glob("nvidia[0-9]*"))) <= 1


@pytest.mark.skipif(PRETENDS, reason="the stand-in is a process of this host")
def test_the_host_is_out_of_reach():
    assert os.geteuid() != 0
    assert not Path("/var/run/docker.sock").exists()
    assert not os.access("/", os.W_OK)
