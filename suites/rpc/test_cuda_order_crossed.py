"""The tests of the order of a GPU's work once more, with each device mapped to another one."""

from collections.abc import Iterator, Mapping

import pytest

from allranks.testing import RpcWorld, rpc_world

from .cuda_agents import MappedTensorPipe, Place
from .test_cuda_order import (
    test_many_results_of_streams_of_two_workers,
    test_models_argument_is_a_reference,
    test_models_result_goes_over_a_third_worker,
    test_models_result_is_fetched,
    test_models_result_is_used_by_its_owner,
    test_result_is_fetched_by_a_reference,
    test_result_of_a_stream_of_the_callee,
    test_result_of_streams_of_two_workers,
    test_results_of_many_streams_of_the_callee,
)

__all__ = [
    "test_many_results_of_streams_of_two_workers",
    "test_models_argument_is_a_reference",
    "test_models_result_goes_over_a_third_worker",
    "test_models_result_is_fetched",
    "test_models_result_is_used_by_its_owner",
    "test_result_is_fetched_by_a_reference",
    "test_result_of_a_stream_of_the_callee",
    "test_result_of_streams_of_two_workers",
    "test_results_of_many_streams_of_the_callee",
]

pytestmark = pytest.mark.require_gpus(2)


@pytest.fixture(scope="module")
def device_map() -> Mapping[Place, Place]:
    """Each of two devices is the other one at the callee."""
    return {0: 1, 1: 0}


@pytest.fixture(scope="module")
def world_of_file(names: list[str], device_map: Mapping[Place, Place]) -> Iterator[RpcWorld]:
    """A world with this map between all workers, also from each to itself; its devices are those of the maps."""
    with rpc_world(agent=MappedTensorPipe(maps=dict.fromkeys(names, device_map))) as world:
        yield world
