"""What the ranks of a cell take of the GPU that they share."""

import torch
import torch.distributed as dist
from gpu_acceptance import notes
from gpu_acceptance.device import device as make_gpu


def test_memory(rank, world_size, device):
    assert torch.ones(1000, device=device).sum().item() == 1000
    dist.barrier()
    if rank == 0:
        free, total = make_gpu().memory(0)
        notes.leave("memory", ranks=world_size, used=total - free)
    dist.barrier()
