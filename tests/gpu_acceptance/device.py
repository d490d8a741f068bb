"""The GPU that tests and probes use: torch's, or under ``--pretend`` a stand-in on the CPU."""

import os
from types import ModuleType
from typing import Final, Protocol

import torch

from gpu_acceptance.pretence import PRETENDS

_ENDLESS: Final = 1 << 62
"""Cycles: about 70 years."""

_NOBODYS: Final = 1 << 12
"""An address below the first one that Linux maps (vm.mmap_min_addr): no GPU may read it, whatever memory it shares."""


class Device(Protocol):
    """What is done to a GPU."""

    type: str
    initialiser: tuple[ModuleType, str]
    """The function that initialises CUDA in a process: its module and its name there."""

    def count(self) -> int:
        """The GPUs that this process sees."""

    def place(self, number: int) -> torch.device:
        """Where the tensors of a GPU are."""

    def uuid(self, number: int) -> str:
        """What the driver and NVML know a GPU by."""

    def describe(self, number: int) -> tuple[str, int]:
        """Its product name, and its memory in MiB."""

    def memory(self, number: int) -> tuple[int, int]:
        """Free and total memory in MiB, as the driver has them: of all processes."""

    def spin(self) -> None:
        """Start a kernel that never ends, and return at once."""

    def is_spinning(self) -> bool:
        """True if the kernel of :meth:`spin` runs."""

    def wait(self) -> None:
        """Wait for all kernels of this process."""

    def touch_illegal_address(self) -> None:
        """Read memory that belongs to no allocation."""

    def take_all_memory(self) -> None:
        """Allocate until the GPU has no more."""


class Cuda:
    """The GPUs of this host, by torch."""

    type = "cuda"
    initialiser = (torch._C, "_cuda_init")

    def count(self) -> int:
        """See :class:`Device`."""
        return torch.cuda.device_count()

    def place(self, number: int) -> torch.device:
        """See :class:`Device`."""
        return torch.device("cuda", number)

    def uuid(self, number: int) -> str:
        """See :class:`Device`."""
        found = str(torch.cuda.get_device_properties(number).uuid)
        return found if found.startswith(("GPU-", "MIG-")) else f"GPU-{found}"

    def describe(self, number: int) -> tuple[str, int]:
        """See :class:`Device`."""
        properties = torch.cuda.get_device_properties(number)
        return properties.name, properties.total_memory >> 20

    def memory(self, number: int) -> tuple[int, int]:
        """See :class:`Device`."""
        free, total = torch.cuda.mem_get_info(number)
        return free >> 20, total >> 20

    def spin(self) -> None:
        """See :class:`Device`."""
        torch.cuda._sleep(_ENDLESS)
        self._event = torch.cuda.Event()
        self._event.record()

    def is_spinning(self) -> bool:
        """See :class:`Device`."""
        return not self._event.query()

    def wait(self) -> None:
        """See :class:`Device`."""
        torch.cuda.synchronize()

    def touch_illegal_address(self) -> None:
        """See :class:`Device`; torch checks the bounds of its own storages, so this one is made by hand."""
        storage = torch._C._construct_storage_from_data_pointer(_NOBODYS, torch.device("cuda", 0), 4096)
        (torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage, 0, (4096,), (1,)) + 1).sum().item()

    def take_all_memory(self) -> None:
        """See :class:`Device`."""
        taken = []
        while True:
            taken.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))


def device() -> Device:
    """The GPU, or its stand-in."""
    if PRETENDS not in os.environ:
        return Cuda()
    from gpu_acceptance.pretence.stand_in import StandIn

    return StandIn()
