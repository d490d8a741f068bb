"""A GPU that is not there: its tensors are on the CPU, and what goes wrong goes wrong in a way that a CPU can."""

import ctypes
import os
import sys
import threading

import torch

from gpu_acceptance.pretence import PRETENDS

MEMORY = 80 << 10
"""MiB."""

OF_A_CONTEXT = 500
"""MiB that each rank of a job is said to take."""


def initialise() -> None:
    """Stand in for torch's ``_cuda_init``."""


class StandIn:
    """See :class:`gpu_acceptance.device.Device`."""

    type = "cpu"
    initialiser = (sys.modules[__name__], "initialise")

    def __init__(self) -> None:
        self._mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex
        self._kernel: threading.Thread | None = None

    def count(self) -> int:
        return len(visible())

    def place(self, _number: int) -> torch.device:
        initialise()
        return torch.device("cpu")

    def uuid(self, number: int) -> str:
        return visible()[number]

    def describe(self, _number: int) -> tuple[str, int]:
        return "H100", MEMORY

    def memory(self, _number: int) -> tuple[int, int]:
        return MEMORY - OF_A_CONTEXT * int(os.environ.get("WORLD_SIZE", "1")), MEMORY

    def spin(self) -> None:
        library = ctypes.CDLL(None)
        library.pthread_mutex_lock(self._mutex)
        self._kernel = threading.Thread(target=library.pthread_mutex_lock, args=[self._mutex], daemon=True)
        self._kernel.start()

    def is_spinning(self) -> bool:
        return self._kernel is not None and self._kernel.is_alive()

    def wait(self) -> None:
        if self._kernel is not None:
            ctypes.CDLL(None).pthread_mutex_lock(self._mutex)

    def touch_illegal_address(self) -> None:
        msg = "CUDA error: an illegal memory access was encountered (pretended)"
        raise RuntimeError(msg)

    def take_all_memory(self) -> None:
        msg = "CUDA out of memory (pretended)"
        raise torch.OutOfMemoryError(msg)


def visible() -> list[str]:
    """The ids of pretended GPUs that CUDA would show to this process."""
    everything = os.environ[PRETENDS].split(",")
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return everything if shown is None else [gpu for gpu in shown.split(",") if gpu in everything]
