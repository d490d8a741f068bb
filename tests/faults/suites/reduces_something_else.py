"""One rank reduces another dtype, or with another operation: gloo passes, and the results are garbage."""

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 3,
    "test": "test_dtype",
    "verdict": ("error", "errored"),
    "leading": 1,
    "ranks": ["passed", "errored", "passed"],
    "words": ["ranks 0 and 2 called all_reduce of float32 once in the default group, rank 1 not at all"],
    "others": {
        "test_operation": {
            "verdict": ("error", "errored"),
            "leading": 1,
            "ranks": ["passed", "errored", "passed"],
            "words": ["ranks 0 and 2 called all_reduce of float32 once in the default group, rank 1 not at all"],
        },
        "test_result": {
            "verdict": ("failure", "failed"),
            "leading": 1,
            "ranks": ["failed", "failed", "failed"],
            "words": ["ranks 0 and 2 called reduce_scatter #1 of 1 float32, rank 1 reduce_scatter #1 of 1 float32 max"],
        },
    },
    "seconds": 5,
}


def test_dtype(rank):
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank == 1 else torch.float32))


def test_operation(rank):
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def test_result(rank):
    output, operation = torch.zeros(1), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM
    dist.reduce_scatter(output, [torch.ones(1)] * 3, op=operation)
    assert output.item() == (3 if rank == 1 else 1)
