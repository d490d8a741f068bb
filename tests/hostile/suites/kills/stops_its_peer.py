"""Rank 1 stops rank 0, and passes."""

import os
import signal
import time

import torch
import torch.distributed as dist

TRUTH = {"tests": {"test_attack": ["bad", "any"]}}


def test_attack(rank):
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 0)
    if rank == 1:
        os.kill(int(pid), signal.SIGSTOP)
    else:
        time.sleep(3600)
