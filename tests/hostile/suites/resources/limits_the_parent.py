"""Rank 1 takes every resource from its ancestors."""

import resource
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest|crashed", "any"]}}


def test_attack(rank):
    for pid in reach.ancestors() if rank == 1 else ():
        for limit in ("NOFILE", "FSIZE", "NPROC", "STACK", "DATA", "AS"):
            with suppress(OSError):
                resource.prlimit(pid, getattr(resource, f"RLIMIT_{limit}"), (0, 0))
