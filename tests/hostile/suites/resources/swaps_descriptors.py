"""Rank 1 puts each of its descriptors in the place of the next."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank):
    if rank == 1:
        numbers = reach.own_descriptors()
        copies = [os.dup(number) for number in numbers]
        for copy, number in zip(copies, [*numbers[1:], numbers[0]], strict=True):
            os.dup2(copy, number)
        raise AssertionError
