"""One rank prints what no terminal, no XML and no UTF-8 can hold, and fails."""

import os

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "before"],
    "output": ["first", "last"],
    "seconds": 2,
}


NOISE = bytes(range(256)) + b"\x1b[2J\x1b]0;title\x07\xed\xa0\x80\xff\xfe]]>\x1e{}\n"


def test_fault(rank):
    if rank == 1:
        os.write(1, b"first\n" + NOISE + b"last\n")
        os.write(2, NOISE)
        msg = "before \x00\x1b[31m \ud800 after"
        raise ValueError(msg)
