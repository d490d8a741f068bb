"""One rank raises an exception whose text cannot be had."""

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "UnspeakableError"],
    "seconds": 2,
}


class UnspeakableError(Exception):
    def __str__(self):
        msg = "no words"
        raise RuntimeError(msg)

    __repr__ = __str__


def test_fault(rank):
    if rank == 1:
        raise UnspeakableError
