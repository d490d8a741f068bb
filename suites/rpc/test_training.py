"""Training over RPC: backward from references, and a parameter server that averages gradients."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from .sent import async_execution, numbers_of, same

pytestmark = pytest.mark.usefixtures("sparse_invariants")

NO_CONTEXT = 10**15
"""The id of an autograd context that no test has."""


def sum_of(tensor: Tensor) -> Tensor:
    """A scalar to go backward from."""
    return tensor.sum()


def test_backward_from_ones_own_reference(rank: int) -> None:
    """Without a context it is plain autograd."""
    tensor = numbers_of(rank).requires_grad_()
    rpc.RRef((tensor * (rank + 2)).sum()).backward()  # type: ignore[attr-defined]
    assert tensor.grad is not None
    assert same(tensor.grad, torch.full((3,), rank + 2.0))


@pytest.mark.parametrize("times", [1, 2])
def test_backward_from_ones_own_reference_in_a_context(rank: int, peer: str, times: int) -> None:
    """The gradient goes through the peer, and adds up in the context as often as it is asked for."""
    tensor = numbers_of(rank).requires_grad_()
    with dist_autograd.context() as context:
        result = rpc.RRef(rpc.rpc_sync(peer, torch.mul, args=(tensor, rank + 2)).sum())
        for time in range(times):
            result.backward(context, retain_graph=time + 1 < times)  # type: ignore[attr-defined]
        assert same(dist_autograd.get_gradients(context)[tensor], torch.full((3,), (rank + 2.0) * times))  # type: ignore[attr-defined]
    assert tensor.grad is None


@pytest.mark.parametrize(
    ("make", "context", "message"),
    [
        (lambda: torch.ones(3), (), "does not require grad"),
        (lambda: torch.ones(3, requires_grad=True), (), "only for scalar outputs"),
        (
            lambda: torch.ones(3, requires_grad=True).sum(),
            (NO_CONTEXT,),
            f"Could not find autograd context with id: {NO_CONTEXT}",
        ),
        (lambda: "no tensor", (), "RRef should contain a tensor"),
    ],
    ids=["no_grad", "no_scalar", "no_context", "no_tensor"],
)
def test_backward_from_what_has_no_gradient(make: Callable[[], object], context: tuple[int, ...], message: str) -> None:
    """The error tells what is missing."""
    with pytest.raises(RuntimeError, match=message):
        rpc.RRef(make()).backward(*context)  # type: ignore[attr-defined]


@pytest.mark.parametrize("times", [1, 2])
def test_backward_from_a_users_reference(rank: int, peer: str, times: int) -> None:
    """The owner goes backward, and the gradient arrives in this worker's part of the context."""
    tensor = numbers_of(rank).requires_grad_()
    with dist_autograd.context() as context:
        result = rpc.remote(peer, sum_of, args=(tensor * (rank + 2),))
        for time in range(times):
            result.backward(context, retain_graph=time + 1 < times)
        assert same(dist_autograd.get_gradients(context)[tensor], torch.full((3,), (rank + 2.0) * times))  # type: ignore[attr-defined]


def test_backward_from_a_users_reference_to_no_tensor(peer: str) -> None:
    """The owner's error arrives."""
    with dist_autograd.context() as context:
        text = rpc.remote(peer, str, args=("no tensor",))
        with pytest.raises(RuntimeError, match="RRef should contain a tensor"):
            text.backward(context)


def test_backward_from_a_users_reference_needs_a_context(rank: int, peer: str) -> None:
    """Two workers have no other place for it in common."""
    result = rpc.remote(peer, sum_of, args=(numbers_of(rank),))
    with pytest.raises(RuntimeError, match="User RRefs require 'dist_autograd_ctx_id'"):
        result.backward()
    result.to_here()


class Server:
    """Averages the gradients of all trainers, one round after another.

    Args:
        trainers: How many there are.
    """

    def __init__(self, trainers: int) -> None:
        self.trainers = trainers
        self.lock = Lock()
        self.waiting: list[Future[Tensor]] = []
        self.total: Tensor | None = None
        self.rounds = 0

    @async_execution
    def average(self, gradient: Tensor) -> Future[Tensor]:
        """The average, for each trainer, once the last has come."""
        mine: Future[Tensor] = Future()
        with self.lock:
            self.total = gradient if self.total is None else self.total + gradient
            self.waiting.append(mine)
            if len(self.waiting) < self.trainers:
                return mine
            waiting, average = self.waiting, self.total / self.trainers
            self.waiting, self.total = [], None
            self.rounds += 1
        for future in waiting:
            future.set_result(average)
        return mine

    def finished_rounds(self) -> int:
        """How many averages there were."""
        return self.rounds


def gradient_of(trainer: int, round_: int, *, sparse: bool) -> Tensor:
    """The gradient of an embedding: the trainer has seen one row in each round, once more than its number."""
    embedding = torch.nn.Embedding(8, 2, sparse=sparse)
    embedding(torch.full((trainer + 1,), round_)).sum().backward()
    gradient: Tensor | None = embedding.weight.grad
    assert gradient is not None
    return gradient


def train(server: Any, trainer: int, rounds: int, *, sparse: bool) -> list[Tensor]:  # noqa: ANN401 - a reference
    """The averages of all rounds, as one trainer gets them."""
    averages = (
        server.rpc_async().average(gradient_of(trainer, round_, sparse=sparse)).wait() for round_ in range(rounds)
    )
    return [average.to_dense() if sparse else average for average in averages]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_parameter_server(rank: int, world_size: int, names: list[str], *, sparse: bool) -> None:
    """Every rank is a server, and all others train with it: each gets the same average of each round."""
    rounds = 5
    server = rpc.RRef(Server(world_size - 1))
    trainers = [peer for peer in range(world_size) if peer != rank]
    futures = [
        rpc.rpc_async(names[trainer], train, args=(server, trainer, rounds), kwargs={"sparse": sparse})
        for trainer in trainers
    ]
    expected = []
    for round_ in range(rounds):
        average = torch.zeros(8, 2)
        average[round_] = sum(trainer + 1 for trainer in trainers) / len(trainers)
        expected.append(average)
    for averages in torch.futures.wait_all(futures):
        assert len(averages) == rounds
        assert all(torch.allclose(one, other) for one, other in zip(averages, expected, strict=True))
    assert server.local_value().finished_rounds() == rounds
