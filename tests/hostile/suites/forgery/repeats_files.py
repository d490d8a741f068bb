"""Rank 1 writes all that it can read of the job's files into each descriptor, with every outcome a pass."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        data = b"".join(
            path.read_bytes() for path in reach.files() if path.is_file() and path.stat().st_size < reach.MIB
        )
        reach.write_own(reach.better(data))
