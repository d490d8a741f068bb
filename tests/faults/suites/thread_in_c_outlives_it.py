"""Both ranks leave a thread that never comes back from a call into C."""

import ctypes
import threading

import torch
import torch.distributed as dist

FAULT = {
    "world_size": 2,
    "test": "test_fault",
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "seconds": 2,
}


def hang():
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


def test_fault():
    threading.Thread(target=hang).start()


def test_after(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size
