"""One rank reads memory that is nobody's, which breaks its CUDA context for good."""

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": [("failure", "failed"), ("error", "crashed"), ("error", "errored")],
    "undetermined": "a broken context may also end the rank, or its tear-down",
    "leading": 1,
    "words": ["rank 1"],
    "text": ["illegal memory access"],
    "limits": {"process_group": 20, "test": 30, "job": 90},
    "seconds": 40,
}


def fault(gpu, rank, all_reduce):
    if rank == 1:
        gpu.touch_illegal_address()
    all_reduce()
