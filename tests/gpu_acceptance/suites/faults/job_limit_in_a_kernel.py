"""The job's time is up while one rank waits for a kernel that never ends."""

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "limits": {"process_group": 28, "test": 30, "job": 40},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "words": ["the job's time limit"],
    "others": {
        "test_after": "not run",
        "job": {"verdict": ("error", "job"), "words": ["The job timed out"]},
    },
    "seconds": 60,
}


def fault(gpu, rank, all_reduce):
    if rank == 1:
        gpu.spin()
        gpu.wait()
    all_reduce()
