"""Ctrl-C while one rank waits for a kernel that never ends."""

from gpu_acceptance import notes

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "limits": {"process_group": 60, "test": 80, "job": 100},
    "verdict": ("error", "missing"),
    "exit_code": 130,
    "others": {"test_after": "not run"},
    "seconds": 40,
}


def fault(gpu, rank, all_reduce):
    if rank == 1:
        gpu.spin()
        assert gpu.is_spinning()
        notes.leave("spinning")
        gpu.wait()
    all_reduce()
