"""Proxies of references: methods of the object at its owner, by a plain look of a call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from .callees import Account, weigh

pytestmark = pytest.mark.require_world_size(2)

Proxy = Callable[[Any, str], Callable[..., Any]]


def _by_sync(reference: Any, method: str) -> Callable[..., Any]:  # noqa: ANN401 - RRef
    function: Callable[..., Any] = getattr(reference.rpc_sync(), method)
    return function


def _by_async(reference: Any, method: str) -> Callable[..., Any]:  # noqa: ANN401 - RRef
    return lambda *args, **kwargs: getattr(reference.rpc_async(), method)(*args, **kwargs).wait()


def _by_remote(reference: Any, method: str) -> Callable[..., Any]:  # noqa: ANN401 - RRef
    return lambda *args, **kwargs: getattr(reference.remote(), method)(*args, **kwargs).to_here()


by_each_proxy = pytest.mark.parametrize("proxy", [_by_sync, _by_async, _by_remote], ids=["sync", "async", "remote"])


@pytest.fixture(params=["peer", "self"])
def owner(request: pytest.FixtureRequest, names: list[str], rank: int, peer: str) -> str:
    """Another worker, and the caller itself."""
    return peer if request.param == "peer" else names[rank]


@by_each_proxy
def test_a_method_that_does_not_exist_is_an_error(proxy: Proxy, rank: int, peer: str) -> None:
    """The object's own, not one of the proxy."""
    reference = rpc.remote(peer, torch.add, args=(torch.ones(2), rank))
    with pytest.raises(AttributeError, match="has no attribute 'no_such_method'") as caught:
        proxy(reference, "no_such_method")()
    # torch 2.13 leaks the reference of an async proxy otherwise: its future holds the error, whose traceback holds the
    # future, and Python's collector does not see into futures.
    caught.value.with_traceback(None)


@by_each_proxy
def test_methods_of_a_tensor(proxy: Proxy, owner: str, rank: int) -> None:
    """With arguments by position and keyword."""
    reference = rpc.remote(owner, weigh, args=(torch.full((2, 2), rank), 1, 3))
    assert proxy(reference, "size")() == torch.Size([2, 2])
    assert proxy(reference, "add")(1).tolist() == 2 * [2 * [rank + 311]]
    assert proxy(reference, "add")(1, alpha=2).tolist() == 2 * [2 * [rank + 312]]
    assert proxy(reference, "view")(1, 4).tolist() == [4 * [rank + 310]]


def test_a_proxy_can_be_used_again(rank: int, peer: str) -> None:
    """For other methods, and the same ones with other arguments."""
    reference = rpc.remote(peer, weigh, args=(torch.full((2,), rank), 1, 3))
    waiting, future, remote = reference.rpc_sync(), reference.rpc_async(), reference.remote()
    assert [waiting.add(number).tolist() for number in (1, 2)] == [2 * [rank + 311], 2 * [rank + 312]]
    assert waiting.size() == torch.Size([2])
    assert [future.add(number).wait().tolist() for number in (3, 4)] == [2 * [rank + 313], 2 * [rank + 314]]
    assert future.size().wait() == torch.Size([2])
    assert [remote.add(number).to_here().tolist() for number in (5, 6)] == [2 * [rank + 315], 2 * [rank + 316]]
    assert remote.size().to_here() == torch.Size([2])


@by_each_proxy
def test_methods_of_each_kind(proxy: Proxy, owner: str, rank: int) -> None:
    """Of the object, of its class, and static ones."""
    reference = rpc.remote(owner, Account, args=(rank,))
    assert proxy(reference, "after")(amount=5) == rank + 5
    assert proxy(reference, "charged")(10) == 7
    assert proxy(reference, "doubled")(rank) == 2 * rank


@by_each_proxy
def test_methods_change_the_object_of_the_owner(proxy: Proxy, owner: str, rank: int) -> None:
    """A later call sees what an earlier one has changed, by whichever proxy."""
    reference = rpc.remote(owner, Account, args=(rank,))
    assert proxy(reference, "deposit")(10) is None
    assert proxy(reference, "after")(0) == rank + 10
    assert reference.rpc_sync().deposit(100) is None
    assert proxy(reference, "after")(0) == rank + 110
