"""Rank 1 records 5,000 properties of 10 kB, and one of what no file can hold."""

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "bad"]}}


def test_attack(rank, record_property):
    if rank == 1:
        for number in range(5000):
            record_property(f"property {number}", "x" * 10_000)
        record_property("\x00\ud800", object())
        raise AssertionError
