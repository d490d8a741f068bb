"""Rank 1 puts folders where results are expected."""

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        for name in reach.RESULT_NAMES:
            (folder / name).unlink(missing_ok=True)
            (folder / name / name).mkdir(parents=True)
