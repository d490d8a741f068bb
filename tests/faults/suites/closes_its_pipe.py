"""One rank closes its connection to its supervisor, and lives on."""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["failed|aborted", "crashed"],
    "words": ["rank 1 closed its connection to the supervisor and was killed"],
    "seconds": 5,
    "undetermined": "the rank is killed about when its peer's grace ends, and its connection to the peer ends with it",
}


def is_local_socket(descriptor):
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        return connection.family == socket.AF_UNIX
    return False


def test_fault(rank):
    if rank == 1:
        for entry in list(Path("/proc/self/fd").iterdir()):
            with suppress(FileNotFoundError):  # the folder's own descriptor is in this list
                if int(entry.name) > 2 and is_local_socket(int(entry.name)):
                    os.close(int(entry.name))
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))
