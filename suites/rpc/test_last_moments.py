"""References at the end of their world: what is left, what is deleted, and what a deleted one still does.

Each test ends a world with references, and a process has those in its first world alone: each needs ranks of its own.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc
from torch.distributed.rpc import internal

from allranks.testing import FileBarrier, TensorPipe, with_rpc

from .callees import call_async, call_remote, call_sync
from .own_workers import is_up, join, left_at_the_end
from .sent import added, numbers_of, same, sparse_of


def keep_all_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the step of a shutdown that deletes the references of this worker."""
    monkeypatch.setattr(rpc.api, "_delete_all_user_and_unforked_owner_rrefs", lambda *_: None)


@with_rpc
def test_reference_that_is_left_is_an_error(
    rank: int, peer: str, monkeypatch: pytest.MonkeyPatch, file_barrier: FileBarrier
) -> None:
    """Both ends of the reference are on every rank, and each one reports them; RPC is down all the same."""
    keep_all_references(monkeypatch)
    left = rpc.remote(peer, torch.add, args=(numbers_of(rank), 1))
    assert same(left.to_here(), numbers_of(rank) + 1)
    file_barrier()
    with pytest.raises(RuntimeError, match="Leaking RRef"):
        rpc.shutdown()
    assert not is_up()


@with_rpc
def test_reference_that_is_left_can_be_ignored(
    rank: int, peer: str, monkeypatch: pytest.MonkeyPatch, file_barrier: FileBarrier
) -> None:
    """With torch's switch for it, the same shutdown is clean."""
    keep_all_references(monkeypatch)
    monkeypatch.setattr(rpc.api, "_ignore_rref_leak", True)
    left = rpc.remote(peer, torch.add, args=(numbers_of(rank), 1))
    assert same(left.to_here(), numbers_of(rank) + 1)
    file_barrier()
    rpc.shutdown()
    assert not is_up()


class Knot:
    """An object that refers to itself, so that only the garbage collector could free its reference."""

    def __init__(self, reference: Any) -> None:  # noqa: ANN401 - a reference to anything
        self.reference = reference
        self.itself = self


@with_rpc
def test_shutdown_deletes_references_that_nothing_frees(rank: int, peer: str) -> None:
    """One that sits in a cycle would keep its owner waiting; and nothing can be had from it afterwards."""
    knot = Knot(rpc.remote(peer, torch.add, args=(numbers_of(rank), 1)))
    assert same(knot.reference.to_here(), numbers_of(rank) + 1)
    rpc.shutdown()
    with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion"):
        knot.reference.to_here()
    with pytest.raises(RuntimeError, match="Cannot call fork an UserRRef after deletion"):
        internal.serialize(knot.reference)  # type: ignore[no-untyped-call]


@pytest.mark.isolation("test")
@pytest.mark.usefixtures("sparse_invariants")
def test_worker_without_peers_calls_itself_with_sparse_tensors(rank: int, tmp_path: Path) -> None:
    """Each rank is a world of its own, and all three ways to call work in it."""
    options = TensorPipe().options(f"file://{tmp_path}/world", 60)
    with left_at_the_end():
        join("alone", 0, 1, rpc_backend_options=options)
        for call in (call_sync, call_async, call_remote):
            doubled = call("alone", added, sparse_of(rank), sparse_of(rank))
            assert doubled.is_sparse
            assert same(doubled.to_dense(), sparse_of(rank).to_dense() * 2)
        rpc.shutdown()
