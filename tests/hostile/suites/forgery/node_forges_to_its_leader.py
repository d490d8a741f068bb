"""The rank of the second node writes forged messages into every descriptor of every process of its node."""

import reach

TRUTH = {"nodes": 2, "engines": ["docker"], "tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        for pid in reach.pids():
            reach.write_into(pid, reach.plausible() + reach.IMPLAUSIBLE)
