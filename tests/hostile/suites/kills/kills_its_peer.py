"""Rank 1 kills rank 0, which has no chance to pass."""

import os
import signal
import time

import torch
import torch.distributed as dist

TRUTH = {"is_sample": True, "tests": {"test_attack": ["bad", "any"]}}


def test_attack(rank):
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 0)
    if rank == 1:
        os.kill(int(pid), signal.SIGKILL)
    else:
        time.sleep(3600)
