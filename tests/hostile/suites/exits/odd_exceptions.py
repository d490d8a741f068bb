"""Rank 1 raises what no handler expects; none of it is a pass."""

import asyncio
import unittest

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["honest", "unpassed"], "is_bad": True, "count": 8}}}


class BareError(BaseException):
    def __str__(self):
        raise self


class SkippedError(unittest.SkipTest):
    def __init__(self):
        super().__init__("\ud800\x00")


ERRORS = (
    BareError(),
    GeneratorExit(),
    StopIteration(),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    SkippedError(),
    BaseExceptionGroup("", [SystemExit(0)]),
    SystemExit(SystemExit(0)),
)


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_attack(rank, number):
    if rank == 1:
        raise ERRORS[number]
