"""Futures of values on GPUs: a wait orders streams, not only threads."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.futures import Future

from allranks.testing import require_gpu, require_gpus

new_stream: Any = torch.cuda.Stream  # torch gives it no types

CYCLES = 500_000_000
"""Work of a GPU that lasts longer than all that the host does meanwhile."""


@pytest.fixture(autouse=True)
def _world() -> None:
    """No world for the file, unlike in the other files: these futures are of no call."""


class Holder:
    """An object around a tensor, with a part that cannot be pickled.

    Args:
        tensor: The tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.lock = threading.Lock()


def late_tensor(*, sparse: bool) -> Tensor:
    """A tensor whose numbers are there only after long work in the current stream."""
    tensor = torch.zeros(4, 25, device="cuda:0")
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no public way
    tensor += 7
    return tensor.to_sparse() if sparse else tensor


@require_gpu
@pytest.mark.parametrize(
    "make", [lambda: 0, lambda: "cuda:0", lambda: torch.device("cuda", 0)], ids=["number", "text", "device"]
)
def test_device_of_a_future(make: Callable[[], Any]) -> None:
    """It is given in any form, and the future takes a tensor from there."""
    future: Future[Tensor] = Future(devices=[make()])
    future.set_result(torch.full((3,), 7.0, device="cuda:0"))
    assert future.wait().tolist() == [7, 7, 7]


def test_future_is_of_no_cpu() -> None:
    """A CPU has no streams to order."""
    with pytest.raises(ValueError, match="Expected devices to have indices, got cpu"):
        Future(devices=["cpu"])


@require_gpu
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda tensor: tensor, lambda value: value),
        (lambda tensor: [tensor], lambda value: value[0]),
        (Holder, lambda value: value.tensor),
    ],
    ids=["tensor", "list", "object"],
)
def test_wait_orders_streams(wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor], *, sparse: bool) -> None:
    """Another stream sees the numbers that the first one was to write, wherever in the value the tensor is."""
    future: Future[Any] = Future(devices=["cuda:0"])
    with torch.cuda.device(0):
        with torch.cuda.stream(new_stream()):
            future.set_result(wrap(late_tensor(sparse=sparse)))
        with torch.cuda.stream(new_stream()):
            tensor = unwrap(future.wait())
            assert tensor.is_sparse == sparse
            assert (tensor.to_dense() == 7).all().item()


@require_gpus(2)
def test_callback_moves_to_another_device() -> None:
    """The callback's stream comes after the value's, and its own result has the same order."""
    elsewhere = torch.zeros(4, 25, device="cuda:1")
    parent: Future[Tensor] = Future(devices=["cuda:0", "cuda:1"])
    child = parent.then(lambda future: elsewhere.copy_(future.value(), non_blocking=True))
    with torch.cuda.device(0), torch.cuda.stream(new_stream()):
        parent.set_result(late_tensor(sparse=False))
    with torch.cuda.device(1), torch.cuda.stream(new_stream()):
        assert (child.wait() == 7).all().item()


@require_gpus(2)
def test_value_on_a_device_that_is_not_the_futures() -> None:
    """The future fails; a callback that does not look at it still runs."""
    elsewhere = torch.zeros(4, 25, device="cuda:1")
    parent: Future[Tensor] = Future(devices=["cuda:1"])

    def fill(_: Future[Tensor]) -> Tensor:
        with torch.cuda.device(1):
            torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no public way
            return elsewhere.fill_(7)

    child = parent.then(fill)
    with torch.cuda.device(0), torch.cuda.stream(new_stream()):
        parent.set_result(late_tensor(sparse=False))
    with pytest.raises(ValueError, match=r"residing on device\(s\) cuda:0 which are not among .* cuda:1"):
        parent.wait()
    with torch.cuda.device(1), torch.cuda.stream(new_stream()):
        assert (child.wait() == 7).all().item()


@require_gpu
def test_tensor_is_changed_after_the_future_is_done() -> None:
    """The future holds the tensor and no copy."""
    tensor = torch.zeros(100, device="cuda:0")
    future: Future[Tensor] = Future(devices=["cuda:0"])
    future.set_result(tensor)
    tensor.fill_(7)
    assert future.wait() is tensor


@require_gpu
def test_tensor_is_replaced_after_the_future_is_done() -> None:
    """The future holds the list and no copy; the old tensor may be gone."""
    tensors = [torch.zeros(100, device="cuda:0")]
    future: Future[list[Tensor]] = Future(devices=["cuda:0"])
    future.set_result(tensors)
    tensors[0] = torch.full((100,), 7.0, device="cuda:0")
    assert (future.wait()[0] == 7).all().item()
