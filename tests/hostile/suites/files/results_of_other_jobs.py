"""Rank 1 writes good results of the other jobs of the run, by paths that may lead there."""

from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}

GOOD = '<testsuite tests="1"><testcase classname="x" name="test_fails"/></testsuite>'


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        for job in ("bystander_first", "bystander_last"):
            for above in (".", "..", "../../.."):
                target = folder / above / "cells" / "gloo-w2-g0-env" / job / "attempt-1"
                if reach.IN_CONTAINER or above == ".":
                    with suppress(OSError):
                        target.mkdir(parents=True)
                        (target / "rank-1.xml").write_text(GOOD)
