"""An assertion fails, and the ``finally`` of its rank waits for peers, which wait elsewhere: the assertion leads."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 3,
    "test": "test_fault",
    "limits": {"process_group": 4},
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["failed|aborted", "failed", "failed|aborted"],
    "undetermined": "whose time-out comes first",
    "words": ["rank 1 failed", "AssertionError: the cause; then RuntimeError"],
    "seconds": 9,  # the time-out of the process group, and the grace of the peers
}


def test_fault(rank):
    try:
        assert rank != 1, "the cause"
        dist.all_reduce(torch.ones(1))
    finally:
        dist.barrier()


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size
