"""Rank 1 takes every resource from itself, one limit a test, and passes with what is left."""

import resource

import pytest

TRUTH = {"tests": {"test_attack[*": {"ranks": ["honest", "any"], "count": 6}}}


@pytest.mark.parametrize("limit", ["NOFILE", "FSIZE", "NPROC", "STACK", "DATA", "MEMLOCK"])
def test_attack(rank, limit):
    if rank == 1:
        number = getattr(resource, f"RLIMIT_{limit}")
        resource.setrlimit(number, (0, resource.getrlimit(number)[1]))
