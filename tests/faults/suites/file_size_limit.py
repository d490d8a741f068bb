"""One rank may write no file any more: what it reports needs none."""

import resource

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "seconds": 3,
}


def test_fault(rank):
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
