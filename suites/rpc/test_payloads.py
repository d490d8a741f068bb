"""What calls carry: tensors in containers and objects, and objects with their own way of pickling."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.distributed.rpc.internal import deserialize, serialize

from .callees import Call, in_each_mode, own_rank

pytestmark = pytest.mark.require_world_size(2)


class Batch(NamedTuple):
    """A tuple with names."""

    inputs: Tensor
    extra: list[Any]


class Holder:
    """An object with a tensor inside.

    Args:
        tensor: The tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _numbers(value: Any) -> list[float]:  # noqa: ANN401 - any container
    """All numbers of all tensors in a value, in order."""
    if isinstance(value, Tensor):
        return [float(number) for number in value.flatten()]
    if isinstance(value, Holder):
        return _numbers(value.tensor)
    if isinstance(value, dict):
        return [number for pair in value.items() for each in pair for number in _numbers(each)]
    if isinstance(value, list | tuple):
        return [number for each in value for number in _numbers(each)]
    return []


def _seen(value: object) -> tuple[int, str, list[float], object]:
    return own_rank(), type(value).__name__, _numbers(value), value


def _list(rank: int) -> object:
    return [torch.full((2,), rank), torch.full((1, 1), rank + 1)]


def _dict(rank: int) -> object:
    return {"first": torch.full((2,), rank), "second": torch.full((1,), rank + 1)}


def _named_tuple(rank: int) -> object:
    return Batch(torch.full((2,), rank), [torch.full((1,), rank + 1), "text"])


def _object(rank: int) -> object:
    return Holder(torch.full((3,), rank))


def _nested(rank: int) -> object:
    inner = torch.full((2,), rank)
    return [{"batch": Batch(inner, [Holder(inner + 1)])}, (inner + 2, [[inner + 3]])]


def _tensor_as_key(rank: int) -> object:
    return {torch.full((2,), rank): [torch.full((1,), rank + 1)]}


@in_each_mode
@pytest.mark.parametrize("make", [_list, _dict, _named_tuple, _object, _nested, _tensor_as_key])
def test_tensors_travel_in(call: Call, make: Call, rank: int, next_rank: int, peer: str) -> None:
    """A container or object: the callee finds every number in it, and so does the caller in the result."""
    value = make(rank)
    callee, kind, numbers, returned = call(peer, _seen, value)
    assert (callee, kind) == (next_rank, type(value).__name__)
    assert numbers == _numbers(value)
    assert len(numbers) >= 3
    assert type(returned) is type(value)
    assert _numbers(returned) == numbers


def test_two_containers_and_an_object_in_one_call(rank: int, peer: str) -> None:
    """Each argument has its own tensors."""
    total = rpc.rpc_sync(peer, _total, args=(_list(rank), _object(10 * rank)), kwargs={"last": _dict(100 * rank)})
    assert total == [rank, rank, rank + 1, *3 * [10 * rank], 100 * rank, 100 * rank, 100 * rank + 1]


def _total(*values: object, last: object) -> list[float]:
    return _numbers([*values, last])


class Parcel:
    """An object that uses the pickler of RPC inside of its own pickling.

    Args:
        tensor: What it carries; None in a parcel under way.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getstate__(self) -> tuple[bytes, list[Tensor]]:
        """Two tensors, pickled while the call itself is."""
        state: tuple[bytes, list[Tensor]] = serialize([self.tensor, self.tensor + 1])  # type: ignore[no-untyped-call]
        return state

    def __setstate__(self, state: tuple[bytes, list[Tensor]]) -> None:
        """Their sum, unpickled while the call is."""
        first, second = deserialize(*state)  # type: ignore[no-untyped-call]
        self.tensor = first + second


def _added(before: Tensor, parcel: Parcel, after: Tensor) -> list[Any]:
    return [before.tolist(), parcel.tensor.tolist(), after.tolist()]


@in_each_mode
def test_an_object_pickles_tensors_while_its_call_is_pickled(call: Call, rank: int, peer: str) -> None:
    """The tensors of the call, before and after it, stay apart from those of the object."""
    parcel = Parcel(torch.full((2,), rank))
    result = call(peer, _added, torch.tensor([7]), parcel, torch.tensor([8]))
    assert result == [[7], 2 * [2 * rank + 1], [8]]
