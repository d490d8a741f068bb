"""Errors of calls, what a message may hold, and the pickler of messages."""

import sys

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.distributed.rpc.internal import _internal_rpc_pickler, _InternalRPCPickler

from allranks.testing import FileBarrier

from .callees import Call, in_each_mode
from .sent import added, numbers_of, same, scripted


class UnlikelyError(Exception):
    """Cannot be made again from its text alone.

    Args:
        code: A number.
        text: The message.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def raise_unlikely() -> None:
    """Raise an error that the caller cannot rebuild.

    Raises:
        UnlikelyError: Always.
    """
    raise UnlikelyError(7, f"only on {rpc.get_worker_info().name}")


def raise_for_pairs(numbers: Tensor) -> Tensor:
    """Refuse tensors of two numbers.

    Raises:
        ValueError: It has two.
    """
    if numbers.numel() == 2:
        msg = f"no pairs on {rpc.get_worker_info().name}"
        raise ValueError(msg)
    return numbers + 1


def test_error_that_the_caller_cannot_rebuild(peer: str) -> None:
    """The caller gets a RuntimeError with the name and the text of the original."""
    with pytest.raises(RuntimeError, match="Original exception on remote side was") as caught:
        rpc.rpc_sync(peer, raise_unlikely)
    assert "UnlikelyError" in str(caught.value)
    assert f"only on {peer}" in str(caught.value)


def test_reference_to_a_failed_result_raises_its_error(rank: int, peer: str) -> None:
    """The error comes with the fetch; a call that works is not touched by it."""
    failed, good = (rpc.remote(peer, raise_for_pairs, args=(torch.ones(count) * rank,)) for count in (2, 3))
    with pytest.raises(ValueError, match=f"no pairs on {peer}"):
        failed.to_here()
    assert same(good.to_here(), torch.ones(3) * rank + 1)


@in_each_mode
def test_operator_with_arguments_of_no_overload(peer: str, call: Call) -> None:
    """The caller knows the operator's schemas, and sends nothing."""
    with pytest.raises(RuntimeError, match="failed to match any schema"):
        call(peer, torch.add)


def absent() -> str:
    """Stands for a function that only the caller has."""
    return "not absent at all"


def test_function_that_the_callee_does_not_have(
    rank: int, world_size: int, names: list[str], file_barrier: FileBarrier
) -> None:
    """The caller gets an error that tells to define the function on both, and the callee lives on."""
    here = sys.modules[__name__]
    kept = here.__dict__["absent"]
    if rank == world_size - 1:
        del here.__dict__["absent"]
    file_barrier()
    try:
        if rank == 0:
            with pytest.raises((RuntimeError, AttributeError), match="RPC pickler does not serialize"):
                rpc.rpc_sync(names[-1], kept)
            assert rpc.rpc_sync(names[-1], rpc.get_worker_info).id == world_size - 1
        file_barrier()
    finally:
        here.__dict__["absent"] = kept
    file_barrier()
    assert rpc.rpc_sync(names[-1], absent) == "not absent at all"


def layout_at_callee(tensor: Tensor) -> tuple[bool, tuple[int, ...], Tensor]:
    """What the callee sees of a tensor, and the tensor itself."""
    return tensor.is_contiguous(), tensor.stride(), tensor


def test_tensor_stays_non_contiguous(rank: int, peer: str) -> None:
    """A narrow view arrives as one on the callee, and comes back as one."""
    whole = torch.arange(25.0).reshape(5, 5) + rank
    view = whole.narrow(1, 2, 2)
    contiguous, stride, back = rpc.rpc_sync(peer, layout_at_callee, args=(view,))
    assert not contiguous
    assert stride == view.stride() == (5, 1)
    assert back.stride() == view.stride()
    assert same(back, view)
    assert rpc.rpc_sync(peer, layout_at_callee, args=(view.contiguous(),))[:2] == (True, (2, 1))


class CountingPickler(_InternalRPCPickler):
    """Counts what it pickles."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pickled: list[object] = []

    def serialize(self, obj: object) -> tuple[bytes, list[Tensor]]:
        """Pickle as torch does, and note it."""
        self.pickled.append(obj)
        return super().serialize(obj)  # type: ignore[no-any-return,no-untyped-call]


def test_pickler_can_be_exchanged_for_a_block(rank: int, peer: str) -> None:
    """Within the block it pickles this worker's calls; after it, torch's own does again."""
    pickler = CountingPickler()
    with rpc.api._use_rpc_pickler(pickler):  # noqa: SLF001 - no public name
        assert rpc.api._default_pickler is pickler  # noqa: SLF001 - as above
        assert same(rpc.rpc_sync(peer, added, args=(numbers_of(rank), torch.ones(3))), numbers_of(rank) + 1)
    assert any(getattr(each, "func", None) is added for each in pickler.pickled)
    count = len(pickler.pickled)
    assert rpc.api._default_pickler is _internal_rpc_pickler  # noqa: SLF001 - as above
    assert same(rpc.rpc_sync(peer, added, args=(numbers_of(rank), torch.ones(3))), numbers_of(rank) + 1)
    assert len(pickler.pickled) == count


@scripted
def scripted_work(tensor: Tensor) -> int:
    """Many small operators, in TorchScript."""
    for number in range(1, 100):
        tensor = tensor * number / (number + 1)
    return int(tensor.sum().round())


def test_many_calls_of_a_scripted_function(rank: int, peer: str) -> None:
    """Each of fifty calls is answered with its own number: 1/100 of the sum remains."""
    futures = [
        rpc.rpc_async(peer, scripted_work, args=(torch.full((10, 10), float(number + rank)),)) for number in range(50)
    ]
    assert torch.futures.wait_all(futures) == [number + rank for number in range(50)]
