"""A test destroys the process group: the next test gets a fresh gang with a group of its own."""

import torch.distributed as dist

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "seconds": 2,
}


def test_fault():
    dist.destroy_process_group()
