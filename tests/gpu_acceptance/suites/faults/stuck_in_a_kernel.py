"""One rank waits for a kernel that never ends, its peer for this rank."""

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "limits": {"process_group": 12, "test": 15, "job": 90},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "words": ["rank 1 timed out"],
    "seconds": 30,
}


def fault(gpu, rank, all_reduce):
    if rank == 1:
        gpu.spin()
        gpu.wait()
    all_reduce()
