"""The type of what a reference refers to: asked of the owner, once."""

from typing import Any

import pytest
import torch
from torch.distributed import rpc

from .callees import Account, call_sync, fail, open_gate, wait_at

pytestmark = pytest.mark.require_world_size(2)

waiting_or_not = pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non_blocking"])


def _type(reference: Any, *, blocking: bool) -> Any:  # noqa: ANN401 - RRef has no annotation for it
    kind = reference._get_type(blocking=blocking)  # noqa: SLF001 - torch has no public name for it
    return kind if blocking else kind.wait()


@waiting_or_not
def test_a_user_knows_the_type_of_a_tensor_and_of_an_object(blocking: bool, rank: int, peer: str) -> None:
    """Without fetching either."""
    assert _type(rpc.remote(peer, torch.add, args=(torch.ones(2), rank)), blocking=blocking) is torch.Tensor
    assert _type(rpc.remote(peer, Account, args=(rank,)), blocking=blocking) is Account


@waiting_or_not
def test_the_owner_knows_the_type_of_a_tensor_and_of_an_object(blocking: bool, rank: int) -> None:
    """By a reference without users."""
    assert _type(rpc.RRef(torch.full((2,), rank)), blocking=blocking) is torch.Tensor
    assert _type(rpc.RRef(Account(rank)), blocking=blocking) is Account


@waiting_or_not
def test_the_owner_is_asked_once(blocking: bool, rank: int, peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later answers are the first one again."""
    asked: list[Any] = []
    rpc_async = rpc.api.rpc_async

    def counting(*args: object, **kwargs: object) -> object:
        asked.append(args[0])
        return rpc_async(*args, **kwargs)

    monkeypatch.setattr(rpc.api, "rpc_async", counting)
    reference = rpc.remote(peer, Account, args=(rank,))
    assert [_type(reference, blocking=blocking) for _ in range(10)] == 10 * [Account]
    assert [owner.name for owner in asked] == [peer]


def test_without_blocking_the_answer_is_one_future(rank: int, peer: str) -> None:
    """Each time the same; whoever adds a callback sees the type."""
    reference = rpc.remote(peer, Account, args=(rank,))
    futures = [reference._get_type(blocking=False) for _ in range(10)]  # noqa: SLF001 - as above
    assert all(future is futures[0] for future in futures)
    assert futures[0].then(lambda future: future.value()).wait() is Account


@waiting_or_not
def test_an_object_that_could_not_be_made_has_no_type(blocking: bool, rank: int, peer: str) -> None:
    """Its error is raised instead: at once, or by the future."""
    reference = rpc.remote(peer, fail, args=(f"nothing for {rank}",))
    if blocking:
        with pytest.raises(ValueError, match=f"nothing for {rank}"):
            reference._get_type(blocking=True)  # noqa: SLF001 - as above
    else:
        future = reference._get_type(blocking=False)  # noqa: SLF001 - as above
        with pytest.raises(ValueError, match=f"nothing for {rank}"):
            future.wait()


def _account_later(gate: str, balance: int) -> Account:
    wait_at(gate)
    return Account(balance)


@waiting_or_not
def test_the_type_is_known_when_the_object_is_made(blocking: bool, rank: int, peer: str) -> None:
    """The question waits as long as the callee works."""
    gate = f"type for {rank}, {blocking}"
    reference = rpc.remote(peer, _account_later, args=(gate, rank))
    if blocking:
        opened = rpc.rpc_async(peer, open_gate, args=(gate,))
        assert reference._get_type() is Account  # noqa: SLF001 - as above
        opened.wait()
    else:
        future = reference._get_type(blocking=False)  # noqa: SLF001 - as above
        assert not future.done()
        call_sync(peer, open_gate, gate)
        assert future.wait() is Account
