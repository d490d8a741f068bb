"""Rank 1 makes each clock say what no clock says, one kind a test."""

import time

import pytest

TRUTH = {"is_sample": True, "tests": {"test_attack[*": {"ranks": ["honest", "any"], "count": 10}}}

CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns", "process_time")


@pytest.mark.parametrize(
    "value",
    [None, -1e15, 1e300, float("nan"), float("inf"), -1, 10**400, "now", True, b"0"],
    ids=lambda value: str(value)[:9],
)
def test_attack(rank, value, monkeypatch):
    if rank == 1:
        for clock in CLOCKS:
            monkeypatch.setattr(time, clock, lambda: value)
