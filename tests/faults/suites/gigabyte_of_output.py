"""One rank prints 1 GB, as fast as it can, and passes."""

import sys

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "memory_mib": 1024,
    "seconds": 10,
}


def test_fault(rank):
    if rank == 1:
        block = b"x" * 1023 + b"\n"
        for _ in range(1 << 10):
            sys.stdout.buffer.write(block * (1 << 10))
        sys.stdout.flush()
