"""Rank 1 puts links that lead round in circles, outside and nowhere where results are expected."""

from itertools import cycle

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        for name, target in zip(reach.RESULT_NAMES, cycle(["/etc/passwd", "", "/dev/zero", "..", "/proc/self/mem"])):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target or name)
