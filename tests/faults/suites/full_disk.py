"""One rank fills the disk that the job's folder lies on, and leaves it full."""

from pathlib import Path

import torch.distributed as dist

FAULT = {
    "disk_mib": 16,
    "not_on": {
        "docker": "a volume is as large as the daemon's disk, which is not ours to fill",
        "slurm": "the nodes of the trial cluster have the host's disk, which is not ours to fill",
    },
    "exit_code": [1, 3, 4],
    "verdict": [
        ("failure", "failed"),
        ("error", "crashed"),
        ("error", "missing"),
        ("error", "aborted"),
        ("error", "errored"),
        ("error", "timed_out"),
    ],
    "leading": [1, None],
    "ranks": ["failed|aborted|missing|crashed|errored", "failed|crashed|missing|errored|timed_out"],
    "undetermined": "how much of what says so still fits into the last pages of the files",
    "words": ["No space left on device"],
    "others": {
        "test_after": {
            "verdict": [
                ("passed", ""),
                ("error", "missing"),
                ("error", "errored"),
                ("error", "crashed"),
                ("error", "aborted"),
            ],
            "leading": [None, 0, 1],
            "ranks": ["passed|missing|crashed|errored|aborted", "passed|missing|crashed|errored|aborted"],
            "undetermined": "how much still fits into the last pages of the files",
        },
    },
    "seconds": 6,
}


def test_before():
    pass


def test_fault(rank):
    dist.barrier()
    if rank == 1:
        with Path("filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    dist.barrier()
