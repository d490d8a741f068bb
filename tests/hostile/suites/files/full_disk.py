"""Rank 1 fills every disk of the job."""

from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        with suppress(OSError), (folder / "full").open("wb", 0) as file:
            while file.write(bytes(reach.MIB)):
                pass
