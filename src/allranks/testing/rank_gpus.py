"""Which GPUs of this host belong to which rank."""

import torch

from allranks.testing.skips import skipcodes
from allranks.testing.skips.requirement import skip

ONE_RANK_EACH = frozenset({"nccl", "ucc", "xccl", "hccl"})
"""Backends whose ranks cannot share a GPU."""


def rank_to_gpus(world_size: int, backend: str | None = None, *, gpus_per_rank: int | None = 1) -> dict[int, list[int]]:
    """The GPUs of each rank of one host.

    Every rank gets the same number of GPUs, and no two ranks share one, as long as there are enough. Where there are
    too few, a backend that needs a GPU for each rank skips the test; the ranks of any other share GPUs in turn,
    and have none where there is none.

    Args:
        world_size: How many ranks this host has.
        backend: The backend of the test; None for one that can share GPUs.
        gpus_per_rank: How many each gets; None for as many as can be divided evenly.

    Returns:
        For each rank, the indices of its GPUs.

    Raises:
        EnvironmentSkip: Fewer GPUs than the ranks need, by torch's code for that number.
        ValueError: ``world_size`` or ``gpus_per_rank`` is less than 1.
    """
    if world_size < 1 or (gpus_per_rank is not None and gpus_per_rank < 1):
        msg = f"{world_size} ranks with {gpus_per_rank} GPUs each cannot be: give numbers from 1"
        raise ValueError(msg)
    present = _accelerator_count()
    each = gpus_per_rank if gpus_per_rank is not None else max(present // world_size, 1)
    if world_size * each <= present:
        return {rank: list(range(rank * each, (rank + 1) * each)) for rank in range(world_size)}
    if backend is not None and backend.lower() in ONE_RANK_EACH:
        _skip_for_want_of(world_size * each, present)
    return {rank: _shared(rank * each, min(each, present), present) for rank in range(world_size)}


def _shared(first: int, count: int, present: int) -> list[int]:
    return [(first + place) % present for place in range(count)]


def _skip_for_want_of(needed: int, present: int) -> None:
    if present == 0:
        skip(skipcodes.SkipCode.NO_CUDA)
    skip(skipcodes.multi_gpu(needed), f"{present} of {needed}")


def _accelerator_count() -> int:
    """How many accelerators are visible; does not initialise CUDA, so that forks can still use it."""
    return int(torch.cuda.device_count() or torch.xpu.device_count())
