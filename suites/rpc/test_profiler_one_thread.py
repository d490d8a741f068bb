"""The tests of profiles once more, with agents that have one thread for all calls."""

from collections.abc import Iterator

import pytest
import torch
from torch.distributed import rpc

from allranks.testing import FileBarrier, RpcWorld, TensorPipe, rpc_world

from .test_profiler import (
    test_profile_follows_an_async_function,
    test_profile_has_a_reference_to_ones_own_worker,
    test_profile_has_the_call_and_its_operator,
    test_profile_of_a_call_in_an_autograd_context,
)

__all__ = [
    "test_profile_follows_an_async_function",
    "test_profile_has_a_reference_to_ones_own_worker",
    "test_profile_has_the_call_and_its_operator",
    "test_profile_of_a_call_in_an_autograd_context",
]


@pytest.fixture(scope="module")
def world_of_file() -> Iterator[RpcWorld]:
    """A world of workers that run one call at a time."""
    with rpc_world(agent=TensorPipe(worker_threads=1)) as world:
        yield world


def _forget_profiles() -> None:
    """Drop what profiled calls have left in the agent's only thread."""
    torch._C._autograd._clear_callbacks()  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way


@pytest.fixture(autouse=True)
def _threads_as_new(rank: int, names: list[str], file_barrier: FileBarrier) -> Iterator[None]:
    """Threads that have served no profiled call yet, for one rank after another.

    As in ``test_profiler.py``; but there is only one thread, which may serve one profiled call in the test of a rank.
    """
    for _ in range(rank):
        file_barrier()
    for name in names:
        rpc.rpc_sync(name, _forget_profiles)
    yield
    for _ in range(rank, len(names)):
        file_barrier()
