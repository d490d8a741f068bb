"""One rank starts a program that outlives it and holds its output."""

import subprocess

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "prints": ["rank 1", "sleep 3607"],
    "seconds": 4,
}


def test_fault(rank):
    if rank == 1:
        subprocess.Popen(["sleep", "3607"])  # noqa: S607 - any sleep will do
