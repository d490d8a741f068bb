"""One rank skips a part of a test that its peer runs: in pytest's own report, the test has passed."""

import os
import unittest

import pytest

FAULT = {
    "verdict": ("error", "ranks disagree"),
    "ranks": ["passed", "skipped"],
    "words": ["skipped subtests #2 of 2: not on rank 1"],
    "others": {
        "test_each_skips_another": {
            "verdict": ("error", "ranks disagree"),
            "ranks": ["passed", "skipped"],
            "words": ["skipped subtests #2 of 2: not on rank 1"],
        },
        "test_method": {
            "verdict": ("error", "ranks disagree"),
            "ranks": ["passed", "skipped"],
            "words": ["skipped subtests #1 of 1: not on rank 1"],
        },
        "test_expected": {
            "verdict": ("error", "ranks disagree"),
            "ranks": ["passed", "skipped"],
            "words": ["skipped subtests #1 of 1"],
        },
    },
    "seconds": 5,
}


def test_fault(rank, subtests):
    for part in range(2):
        with subtests.test(part=part):
            if rank == part == 1:
                pytest.skip("not on rank 1")


def test_each_skips_another(rank, subtests):
    for part in range(2):
        with subtests.test(part=part):
            if rank == part:
                pytest.skip(f"not on rank {rank}")


class TestCase(unittest.TestCase):
    def test_method(self):
        with self.subTest():
            if os.environ["RANK"] == "1":
                self.skipTest("not on rank 1")


def test_expected(rank, subtests):
    with subtests.test():
        if rank == 1:
            pytest.xfail("known")


def test_all_skip_the_same(rank, subtests):
    for part in range(2):
        with subtests.test(part=part):
            if part == 1:
                pytest.skip(f"not on rank {rank} either")
