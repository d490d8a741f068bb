"""Rank 1 logs 50,000 records, and one of 32 MiB."""

import logging

import reach

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    if rank == 1:
        for number in range(50_000):
            logging.getLogger("hostile").error("record %d \x1b[2J\x00", number)
        logging.getLogger("hostile").error("x" * 32 * reach.MIB)
        raise AssertionError
