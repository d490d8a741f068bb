"""Rank 1 leaves files that seem to have 800 MiB each, and have no byte."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        with (folder / "sparse").open("wb") as file:
            file.truncate(800 * reach.MIB)
