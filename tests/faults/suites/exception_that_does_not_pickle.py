"""One rank raises an exception that cannot be pickled."""

import threading

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "StubbornError", "held fast"],
    "seconds": 2,
}


class StubbornError(Exception):
    def __reduce__(self):
        raise TypeError(self)


def test_fault(rank):
    if rank == 1:
        msg = "held fast"
        raise StubbornError(msg, threading.Lock())
