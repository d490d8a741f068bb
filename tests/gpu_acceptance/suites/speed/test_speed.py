"""Many short tests; the moments at which they begin say what each takes, the making of its ranks included."""

import os

import pytest
import torch
import torch.distributed as dist
from gpu_acceptance import notes


@pytest.mark.parametrize("number", range(int(os.environ["TESTS"])))
def test_all_reduce(number, rank, world_size, device):
    if rank == 0:
        notes.leave(os.environ["KIND"], number=number)
    tensor = torch.ones(8, device=device)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size] * 8
