"""Rank 1 writes messages that pass every test into every descriptor of every process."""

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest|crashed", "any"]}}


def test_attack(rank):
    if rank == 1:
        for pid in reach.pids():
            reach.write_into(pid, reach.plausible() + reach.better(reach.harvest()))
