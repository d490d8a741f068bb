"""Rank 1 prints messages that pass every test, and lines that look like the terminal's."""

import os

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}

LINES = b"\nFORGED all tests passed\n\r\x1b[2J\x1b[HFORGED exit code 0\n::error::FORGED\n"


def test_attack(rank):
    if rank == 1:
        for descriptor in (1, 2):
            os.write(descriptor, LINES)
            reach.write_own(reach.plausible(), [descriptor])
