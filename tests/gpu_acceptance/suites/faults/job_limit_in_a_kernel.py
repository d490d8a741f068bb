"""The job's time is up while one rank waits for a kernel that never ends."""

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "limits": {"process_group": 18, "test": 20, "job": 24},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "words": ["the job's time limit"],
    "others": {
        "test_after": "not run",
        "job": {"verdict": ("error", "job"), "words": ["The job timed out"]},
    },
    "seconds": 60,
}

PAUSE = 12
"""Seconds before the fault, so that the limits of the test and of the peer's collective lie far behind the job's."""


def fault(gpu, rank, all_reduce):
    if rank == 1:
        gpu.spin()
        gpu.wait()
    all_reduce()
