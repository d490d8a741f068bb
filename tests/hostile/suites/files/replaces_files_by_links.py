"""Rank 1 makes of every file a link: to outside, to itself, to nothing, to a device that has no end."""

from itertools import cycle

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for path, target in zip(reach.files() if rank == 1 else (), cycle(["/etc/passwd", "", "/nowhere", "/dev/zero"])):
        path.unlink()
        path.symlink_to(target or path.name)
