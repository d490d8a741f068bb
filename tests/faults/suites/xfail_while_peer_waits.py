"""One rank calls `pytest.xfail`, and its peer waits for it in vain: the ranks disagree, and no victim leads."""

import pytest
import torch
import torch.distributed as dist

FAULT = {
    "limits": {"process_group": 2, "test": 6},
    "verdict": ("error", "ranks disagree"),
    "ranks": ["failed", "xfailed"],
    "words": ["0 failed", "1 xfailed", "not on rank 1"],
    "seconds": 4,
    "others": {
        "test_is_expected_to_fail_on_all": {
            "verdict": ("skipped", "pytest.xfail"),
            "ranks": ["xfailed", "xfailed"],
        },
    },
}


def test_fault(rank):
    if rank == 1:
        pytest.xfail("not on rank 1")
    dist.all_reduce(torch.ones(1))


@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail_on_all(rank):
    assert rank == 0
    dist.all_reduce(torch.ones(1))
