"""One rank writes 1 GB without a newline past Python's own output, and fails."""

import os

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "after all that"],
    "memory_mib": 1024,
    "output": ["the end"],
    "seconds": 10,
}


def test_fault(rank):
    if rank == 1:
        left = memoryview(b"x" * (1 << 24))
        for _ in range(64):
            rest = left
            while rest:
                rest = rest[os.write(1, rest) :]
        os.write(1, b"the end")
        msg = "after all that"
        raise ValueError(msg)
