"""Rank 1 writes what no reader expects over the first bytes of every file of the job, and after the last."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for path in reach.files() if rank == 1 else ():
        if path.is_file():
            with path.open("r+b") as file:
                file.write(b"\x00\xff{[<")
                file.seek(0, 2)
                file.write(reach.IMPLAUSIBLE)
