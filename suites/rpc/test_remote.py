"""Remote calls: a reference to the result, which stays on its owner until someone fetches it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc

from .callees import Account, Call, own_rank, weigh

pytestmark = pytest.mark.require_world_size(2)


@pytest.fixture(params=["peer", "self"])
def callee(request: pytest.FixtureRequest, names: list[str], rank: int, peer: str) -> str:
    """Another worker, and the caller itself."""
    return peer if request.param == "peer" else names[rank]


def test_the_result_of_a_builtin_operator_comes_here(rank: int, callee: str) -> None:
    """As a copy."""
    reference = rpc.remote(callee, torch.add, args=(torch.full((2, 2), rank), 10))
    assert reference.to_here().tolist() == 2 * [2 * [rank + 10]]


def test_the_result_of_a_function_comes_here(rank: int, callee: str) -> None:
    """Any number of times."""
    reference = rpc.remote(callee, weigh, args=(rank, 1), kwargs={"third": 2})
    assert [reference.to_here() for _ in range(3)] == 3 * [rank + 210]


def test_a_reference_knows_its_owner(rank: int, next_rank: int, peer: str) -> None:
    """Whether that is here or not."""
    there, here = rpc.remote(peer, own_rank), rpc.remote(rank, own_rank)
    assert (there.owner().id, there.owner_name(), there.is_owner()) == (next_rank, peer, False)
    assert (here.owner().id, here.is_owner()) == (rank, True)
    assert (there.to_here(), here.to_here()) == (next_rank, rank)


def test_a_call_of_the_caller_itself_has_a_local_value(rank: int) -> None:
    """The result itself, without a copy."""
    reference = rpc.remote(rank, torch.add, args=(torch.full((2,), rank), 10))
    value = reference.local_value()
    assert value.tolist() == 2 * [rank + 10]
    assert reference.local_value().data_ptr() == value.data_ptr()


@pytest.mark.parametrize("function", [torch.add, weigh], ids=["operator", "function"])
def test_ten_references_have_their_own_results(function: Call, rank: int, callee: str) -> None:
    """Fetched after the last call was made."""
    last = () if function is torch.add else (1,)
    references = [rpc.remote(callee, function, args=(torch.full((2,), rank), number, *last)) for number in range(10)]
    expected = [function(torch.full((2,), rank), number, *last).tolist() for number in range(10)]
    assert [reference.to_here().tolist() for reference in references] == expected


def test_a_local_reference_without_users_has_its_value(rank: int) -> None:
    """Nothing is sent for that."""
    value = Account(rank)
    assert rpc.RRef(value).local_value() is value


def test_only_the_owner_has_the_local_value(rank: int, next_rank: int, names: Sequence[str], peer: str) -> None:
    """The error names the worker to ask."""
    reference = rpc.remote(peer, torch.add, args=(torch.ones(1), rank))
    with pytest.raises(RuntimeError) as caught:
        reference.local_value()
    text = str(caught.value)
    assert f"can't call localValue() on user WorkerInfo(id={rank}, name={names[rank]})" in text
    assert f"Call it on owner WorkerInfo(id={next_rank}, name={peer})" in text
    assert reference.to_here().item() == rank + 1


def _fetched(owner: str, number: int) -> tuple[int, Tensor]:
    return own_rank(), rpc.remote(owner, torch.add, args=(torch.full((2,), number), 3)).to_here()


def test_a_callee_makes_a_remote_call_itself(rank: int, next_rank: int, names: list[str], peer: str) -> None:
    """Its owner is a third worker, or the first caller in a world of two."""
    third = names[(rank + 2) % len(names)]
    callee, value = rpc.remote(peer, _fetched, args=(third, rank)).to_here()
    assert (callee, value.tolist()) == (next_rank, 2 * [rank + 3])


def _referred(owner: str, number: int) -> "rpc.RRef[Tensor]":
    reference: rpc.RRef[Tensor] = rpc.remote(owner, torch.add, args=(torch.full((2,), number), 1))
    return reference


def test_a_callee_returns_a_reference_to_a_third_worker(rank: int, names: list[str], peer: str) -> None:
    """The caller fetches the value from its owner."""
    third = (rank + 2) % len(names)
    reference = rpc.rpc_sync(peer, _referred, args=(names[third], rank))
    assert reference.owner().id == third
    assert reference.to_here().tolist() == 2 * [rank + 1]


def _accounts(balances: Sequence[int]) -> list["rpc.RRef[Account]"]:
    return [rpc.RRef(Account(balance)) for balance in balances]


def _deposit(reference: "rpc.RRef[Account]", amount: int) -> int:
    account: Account = reference.local_value()
    account.deposit(amount)
    return account.balance


def test_a_callee_returns_references_to_its_own_objects(rank: int, next_rank: int, peer: str) -> None:
    """The objects stay there, and keep what calls change."""
    references = rpc.rpc_sync(peer, _accounts, args=([rank, rank + 1, rank + 2],))
    assert {reference.owner().id for reference in references} == {next_rank}
    for number, reference in enumerate(references):
        assert rpc.rpc_sync(reference.owner(), _deposit, args=(reference, 10)) == rank + number + 10
    assert [reference.to_here().balance for reference in references] == [rank + 10, rank + 11, rank + 12]
