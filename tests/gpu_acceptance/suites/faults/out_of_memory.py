"""One rank takes all memory of the GPU, and then more."""

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("failure", "failed"),
    "leading": 1,
    "words": ["rank 1", "out of memory"],
    "limits": {"process_group": 20, "test": 30, "job": 90},
    "seconds": 40,
}


def fault(gpu, rank, all_reduce):
    if rank == 1:
        gpu.take_all_memory()
    all_reduce()
