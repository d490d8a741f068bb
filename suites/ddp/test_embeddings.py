"""Embeddings: tables of which a pass uses some rows, with dense and with sparse gradients."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from allranks.testing import skip_unsupported

from .reference import (
    World,
    assert_close,
    assert_same_on_all_ranks,
    copy_of,
    gradients,
    mean_gradients,
    set_gradients,
    values,
)

no_sparse = skip_unsupported("reduction of sparse tensors", on=["nccl"])


class Text(nn.Module):
    """A table of 12 rows, and a layer behind it."""

    def __init__(self, *, sparse: bool, bag: bool = False) -> None:
        """Choose the kind of gradient."""
        super().__init__()
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.table = kind(12, 4, sparse=sparse)
        self.layer = nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        """The layer's output for each word, or for each row of words."""
        return self.layer(self.table(words).tanh())  # type: ignore[no-any-return]


def words(world: World, peer: int, step: int = 0) -> Tensor:
    """Rows that a rank looks up: one of its own, one it shares with its neighbour, and one that all use."""
    return torch.tensor([[2 * peer % 12, (2 * peer + 2) % 12], [11, (peer + step) % 12]], device=world.device)


def everyones_words(world: World, step: int = 0) -> list[Tensor]:
    """Each rank's."""
    return [words(world, peer, step) for peer in range(world.size)]


def dense(tensors: list[Tensor | None]) -> list[Tensor | None]:
    """The same numbers, without gaps."""
    return [None if tensor is None else tensor.to_dense() for tensor in tensors]


def loss(model: nn.Module, rows: Tensor) -> Tensor:
    """Every row has a part in it."""
    squares: Tensor = model(rows).square().sum()
    return squares


@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
def test_rows_that_any_rank_looked_up_have_the_mean(world: World, *, bag: bool) -> None:
    """A rank that did not look a row up counts as zeros."""
    ddp = world.wrap(Text(sparse=False, bag=bag))
    expected = mean_gradients(ddp.module, everyones_words(world), loss)
    loss(ddp, words(world, world.rank)).backward()
    assert_close(gradients(ddp), expected)


@no_sparse
@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
def test_sparse_gradients_have_the_same_mean(world: World, *, bag: bool) -> None:
    """They stay sparse, and have the rows of all ranks."""
    ddp = world.wrap(Text(sparse=True, bag=bag))
    expected = mean_gradients(ddp.module, everyones_words(world), loss)
    loss(ddp, words(world, world.rank)).backward()
    table = ddp.module.table.weight.grad
    assert table.is_sparse
    rows = set(torch.cat(everyones_words(world)).flatten().tolist())
    assert set(table.coalesce().indices().flatten().tolist()) == rows
    assert_close(dense(gradients(ddp)), dense(expected))


@no_sparse
def test_sparse_gradients_of_every_step(world: World) -> None:
    """Their buckets are rebuilt like others."""
    ddp = world.wrap(Text(sparse=True))
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, everyones_words(world, step), loss)
        loss(ddp, words(world, world.rank, step)).backward()
        assert_close(dense(gradients(ddp)), dense(expected))


@no_sparse
def test_sparse_training_is_that_of_one_process(world: World) -> None:
    """With an optimizer for sparse gradients beside a dense one."""
    ddp, alone = world.wrap(Text(sparse=True)), world.place(Text(sparse=True))
    alone.load_state_dict(ddp.module.state_dict())

    def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
        table, *others = model.parameters()
        return [torch.optim.SparseAdam([table], lr=0.05), torch.optim.SGD(others, lr=0.05)]

    ours, references = optimizers(ddp), optimizers(alone)
    for step in range(2):
        set_gradients(alone, mean_gradients(alone, everyones_words(world, step), loss))
        ddp.zero_grad()
        loss(ddp, words(world, world.rank, step)).backward()
        for optimizer in (*ours, *references):
            optimizer.step()
    assert_close(values(ddp), values(alone), rtol=1e-9)
    assert_same_on_all_ranks(values(ddp))


@no_sparse
def test_sparse_gradients_that_were_not_cleared_are_added_to(world: World) -> None:
    """Two passes leave the sum of two means."""
    ddp = world.wrap(Text(sparse=True))
    first, second = (mean_gradients(ddp.module, everyones_words(world, step), loss) for step in range(2))
    with ddp.no_sync():
        loss(ddp, words(world, world.rank, 0)).backward()
    loss(ddp, words(world, world.rank, 1)).backward()
    sums = [one + other for one, other in zip(dense(first), dense(second), strict=True) if one is not None]  # type: ignore[operator]
    assert_close(dense(gradients(ddp)), sums)


@no_sparse
def test_hook_gets_the_sparse_gradient_in_a_bucket_of_its_own(world: World) -> None:
    """The layer's gradients are in another."""
    ddp = world.wrap(Text(sparse=True))
    seen: list[bool] = []

    def average(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        seen.append(bucket.buffer().is_sparse)
        work = dist.all_reduce(bucket.buffer() / world.size, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]

    ddp.register_comm_hook(None, average)
    expected = mean_gradients(ddp.module, everyones_words(world), loss)
    loss(ddp, words(world, world.rank)).backward()
    assert sorted(seen) == [False, True]
    assert_close(dense(gradients(ddp)), dense(expected))


@no_sparse
def test_layer_that_does_not_announce_sparse_gradients_is_an_error(world: World) -> None:
    """Only embedding layers are expected to have some; another's cannot be put into its dense bucket."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(12, 4))

        def forward(self, rows: Tensor) -> Tensor:
            return nn.functional.embedding(rows, self.table, sparse=True)

    ddp = world.wrap(Lookup())
    with pytest.raises(RuntimeError, match=r"(?i)sparse"):
        loss(ddp, words(world, world.rank)).backward()


def test_table_of_which_nothing_was_looked_up(world: World) -> None:
    """An empty batch on the last rank: its gradient counts as zeros."""
    ddp = world.wrap(Text(sparse=False))
    batches = everyones_words(world)
    batches[-1] = batches[-1][:0]
    expected = mean_gradients(copy_of(ddp.module), batches, loss)
    loss(ddp, batches[world.rank]).backward()
    assert_close(gradients(ddp), expected)
