"""Rank 1 has rank 0 killed by signals of memory and of arithmetic."""

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
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
            os.kill(int(pid), number)
    else:
        time.sleep(3600)
