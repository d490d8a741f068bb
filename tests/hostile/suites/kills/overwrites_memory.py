"""Rank 1 makes every outcome in the memory of every other process a pass; peers' memory is open, the past is not."""

import reach

TRUTH = {
    "engines": ["docker"],
    "tests": {"test_attack": ["any", "any"], "test_after": ["any", "any"]},
}


def test_attack(rank):
    for pid in reach.pids() if rank == 1 else ():
        reach.overwrite_memory(pid)
