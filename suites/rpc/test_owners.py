"""References and their owners: who owns what, and what a reference is good for besides its value."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc

from .callees import Call, in_each_mode
from .sent import added, numbers_of, same, scripted, worker_after


class Counter:
    """An object with a state.

    Args:
        count: Where it begins.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def increase(self, step: int) -> None:
        """Count on."""
        self.count += step

    def current(self) -> int:
        """The count."""
        return self.count


@scripted
def scripted_double(numbers: Tensor) -> Tensor:
    """TorchScript that two workers have."""
    return numbers * 2


def call_with_local(method: Callable[..., Any], reference: Any, *args: object) -> Any:  # noqa: ANN401 - any object's
    """Call a method on the object that the caller's reference is to; only on the owner."""
    return method(reference.local_value(), *args)


def fetch_and_add(reference: Any, number: int) -> Any:  # noqa: ANN401 - whatever it refers to
    """Fetch from the owner, and add."""
    return reference.to_here() + number


def sum_of_references(one: Any, other: Any) -> Tensor:  # noqa: ANN401 - as above
    """Add two objects that this worker has references to."""
    total: Tensor = one.to_here() + other.to_here()
    return total


def is_confirmed(reference: Any) -> bool:  # noqa: ANN401 - as above
    """Whether the owner knows of the reference that came with this call."""
    confirmed: bool = reference.confirmed_by_owner()
    return confirmed


def test_owners_are_equal_if_they_are_one_worker(rank: int, peer: str) -> None:
    """They compare and hash by the worker, and differ from what is no worker."""
    mine, also_mine = rpc.RRef(rank), rpc.RRef(rank + 1)
    theirs, also_theirs = (rpc.remote(peer, torch.add, args=(numbers_of(rank), number)) for number in range(2))
    assert mine.owner() == also_mine.owner() == rpc.get_worker_info()
    assert theirs.owner() == also_theirs.owner() == rpc.get_worker_info(peer)
    assert mine.owner() != theirs.owner()
    assert mine.owner() != rank
    by_owner = {mine.owner(): "mine", theirs.owner(): "theirs"}
    assert by_owner[also_mine.owner()] == "mine"
    assert by_owner[also_theirs.owner()] == "theirs"


@in_each_mode
def test_own_reference_is_an_argument(rank: int, peer: str, call: Call) -> None:
    """The callee fetches the value from the caller."""
    assert call(peer, fetch_and_add, rpc.RRef(40 + rank), 50) == 90 + rank


def test_owner_resolves_references_to_its_own_objects(rank: int, peer: str) -> None:
    """The third object is made of the first two, all on one worker."""
    one, other = (rpc.remote(peer, torch.add, args=(numbers_of(rank), number)) for number in (1, 2))
    total = rpc.remote(peer, sum_of_references, args=(one, other))
    assert same(total.to_here(), numbers_of(rank) * 2 + 3)


@in_each_mode
def test_method_is_called_where_the_object_is(rank: int, peer: str, call: Call) -> None:
    """The reference tells the owner, and the state stays there."""
    counter = rpc.remote(peer, Counter, args=(10 * rank,))
    call(counter.owner(), call_with_local, Counter.increase, counter, 2)
    call(counter.owner(), call_with_local, Counter.increase, counter, 5)
    assert call(counter.owner(), call_with_local, Counter.current, counter) == 10 * rank + 7


def test_text_of_a_reference(rank: int, peer: str) -> None:
    """An owner's has its identity, a user's its own besides; both tell the rank that made them."""
    identity = rf"GloballyUniqueId\(created_on={rank}, local_id=(\d+)\)"
    owned = re.fullmatch(rf"OwnerRRef\({identity}\)", str(rpc.RRef(rank)))
    user = rpc.remote(peer, torch.add, args=(numbers_of(rank), 1))
    used = re.fullmatch(rf"UserRRef\(RRefId = {identity}, ForkId = {identity}\)", str(user))
    user.to_here()
    assert owned
    assert used
    assert len({owned[1], used[1], used[2]}) == 3


@pytest.mark.parametrize(
    ("function", "args"),
    [(torch.add, (torch.ones(3), 1)), (added, (torch.ones(3), torch.ones(3))), (scripted_double, (torch.ones(3),))],
    ids=["builtin", "python", "script"],
)
def test_future_of_a_references_creation(peer: str, function: Call, args: tuple[object, ...]) -> None:
    """It is done when the owner has the object."""
    reference = rpc.remote(peer, function, args=args)
    creation = reference._get_future()  # noqa: SLF001 - torch has no public way to ask
    assert isinstance(creation, torch._C.Future)  # noqa: SLF001 - the base of all futures
    creation.wait()
    assert creation.done()
    assert same(reference.to_here(), torch.full((3,), 2.0))


@in_each_mode
def test_passed_on_reference_is_confirmed(rank: int, world_size: int, peer: str, call: Call) -> None:
    """A third worker uses it only when its owner knows of that."""
    reference = rpc.remote(worker_after(rank, world_size, 2), torch.add, args=(numbers_of(rank), 1))
    assert call(peer, is_confirmed, reference) is True
    assert same(reference.to_here(), numbers_of(rank) + 1)


def test_reference_cannot_be_pickled_for_anything_but_a_call(rank: int) -> None:
    """A file would keep it for longer than its owner can know."""
    with pytest.raises(RuntimeError, match="Can not pickle rref in python pickler"):
        pickle.dumps(rpc.RRef(rank))


def test_reference_is_to_the_object_itself(rank: int, peer: str) -> None:
    """What one call changes, the next one finds: the owner does not work with copies."""
    numbers = rpc.remote(peer, torch.add, args=(numbers_of(rank), 0))
    numbers.rpc_sync().add_(5)
    numbers.rpc_sync().mul_(2)
    assert same(numbers.to_here(), (numbers_of(rank) + 5) * 2)
