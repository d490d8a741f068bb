"""Tensors of a GPU in a world without device maps: errors that leave the workers as they were, and profiles."""

import pytest
import torch
from torch import Tensor
from torch.autograd import profiler_legacy
from torch.distributed import rpc

from allranks.testing import TensorPipe, require_gpu, require_gpus

from .callees import Call, call_remote, call_sync
from .sent import numbers_of, same

both_modes = pytest.mark.parametrize("call", [call_sync, call_remote], ids=lambda call: call.__name__)

ARGUMENT = "only supports CPU tensors by default"
RESPONSE = "Response device mapping is not available"


def sum_on_gpu(one: Tensor, other: int) -> Tensor:
    """A result on a GPU."""
    return (one + other).to("cuda:0")


def multiplied_on(device: int) -> None:
    """An operator on a GPU of the callee; the result stays there."""
    torch.mul(torch.ones(3, device=f"cuda:{device}"), 2)


def check_argument(rank: int, peer: str, call: Call) -> None:
    """The error tells what to set; a call with a CPU tensor is answered."""
    with pytest.raises(RuntimeError, match=ARGUMENT) as caught:
        call(peer, torch.add, numbers_of(rank).to("cuda:0"), 1)
    assert "set_device_map" in str(caught.value)
    assert same(call_sync(peer, torch.add, numbers_of(rank), 1), numbers_of(rank) + 1)


def check_response(rank: int, peer: str, call: Call) -> None:
    """The callee cannot send its result; a call with one on the CPU is answered."""
    with pytest.raises(RuntimeError, match=RESPONSE):
        call(peer, sum_on_gpu, numbers_of(rank), 1)
    assert same(call_sync(peer, torch.add, numbers_of(rank), 1), numbers_of(rank) + 1)


@require_gpu
@both_modes
def test_argument_on_a_gpu(rank: int, peer: str, call: Call) -> None:
    """It is an error of the caller, at once: no time limit has to end it."""
    check_argument(rank, peer, call)


@require_gpu
@both_modes
def test_result_on_a_gpu(rank: int, peer: str, call: Call) -> None:
    """It is an error of the callee."""
    check_response(rank, peer, call)


@require_gpu
@pytest.mark.parametrize("check", [check_argument, check_response], ids=lambda check: check.__name__)
def test_no_thread_is_lost_to_errors(rank: int, peer: str, check: Call) -> None:
    """After more of them than the agent has threads, calls are still answered."""
    for _ in range(TensorPipe().worker_threads + 5):
        check(rank, peer, call_sync)


@require_gpus(2)
def test_profile_has_operators_on_the_callees_gpus(next_rank: int, peer: str) -> None:
    """Both calls' operators are the callee's; their device times are not tested, as in torch, where they are off."""
    with profiler_legacy.profile() as profiled:  # type: ignore[no-untyped-call]
        torch.futures.wait_all([rpc.rpc_async(peer, multiplied_on, args=(device,)) for device in range(2)])
    operators = [event for event in profiled.function_events if event.name.endswith("#remote_op: aten::mul")]
    assert [event.node_id for event in operators] == [next_rank] * 2
