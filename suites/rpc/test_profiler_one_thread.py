"""The tests of profiles once more, with agents that have one thread for all calls."""

from collections.abc import Iterator

import pytest

from allranks.testing import RpcWorld, TensorPipe, rpc_world

from .test_profiler import (
    _one_rank_after_another,
    test_profile_follows_an_async_function,
    test_profile_has_a_reference_to_ones_own_worker,
    test_profile_has_the_call_and_its_operator,
    test_profile_of_a_call_in_an_autograd_context,
)

__all__ = [
    "_one_rank_after_another",
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
