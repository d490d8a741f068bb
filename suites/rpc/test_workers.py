"""Workers: their names, ranks and infos, and how a caller says which one it means."""

from collections.abc import Callable

import pytest
import torch
from torch.distributed import rpc
from torch.distributed.rpc import WorkerInfo  # type: ignore[attr-defined]  # public, but not exported for mypy

from .callees import Call, identity, in_each_mode, own_rank

pytestmark = pytest.mark.require_world_size(2)


def test_a_worker_knows_itself(rank: int, names: list[str]) -> None:
    """Without a name, the info is the caller's own."""
    info = rpc.get_worker_info()
    assert (info.name, info.id) == (names[rank], rank)


def test_a_worker_finds_every_worker_by_its_name(names: list[str]) -> None:
    """Itself included."""
    assert [rpc.get_worker_info(name).id for name in names] == list(range(len(names)))


def test_a_name_that_no_worker_has_is_an_error() -> None:
    """It is no name of a worker that may come later."""
    with pytest.raises(RuntimeError, match="could not find destination"):
        rpc.get_worker_info("nobody")


def test_the_agent_lists_every_worker_once(names: list[str]) -> None:
    """In whatever order."""
    infos = rpc.api._get_current_rpc_agent().get_worker_infos()  # type: ignore[attr-defined]  # noqa: SLF001 - no other
    assert sorted((info.id, info.name) for info in infos) == list(enumerate(names))


def test_an_info_can_be_sent(rank: int, names: list[str], peer: str) -> None:
    """A callee gets the info of its caller, and sends it back."""
    info = rpc.rpc_sync(peer, identity, args=(rpc.get_worker_info(),))
    assert (info.name, info.id) == (names[rank], rank)
    assert info == rpc.get_worker_info()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("a*b", "Worker name must match", id="a_star"),
        pytest.param(" ", "Worker name must match", id="a_space"),
        pytest.param("", "must be non-empty", id="nothing"),
        pytest.param(128 * "a", "shorter than 128", id="too_long"),
    ],
)
def test_a_name_is_refused_with_the_reason(name: str, message: str) -> None:
    """Letters, digits, underscores, colons and dashes are allowed, up to 127 of them."""
    assert WorkerInfo(127 * "a", 0).name == 127 * "a"
    with pytest.raises(RuntimeError, match=message):
        WorkerInfo(name, 0)


def _by_rank(rank: int, _: str) -> object:
    return rank


def _by_name(_: int, name: str) -> object:
    return name


def _by_info(_: int, name: str) -> object:
    return rpc.get_worker_info(name)


@in_each_mode
@pytest.mark.parametrize("address", [_by_rank, _by_name, _by_info], ids=["rank", "name", "info"])
def test_a_callee_is_given_by(
    call: Call, address: Callable[[int, str], object], rank: int, world_size: int, names: list[str]
) -> None:
    """Rank, name and info: each reaches the worker that it is of, also the caller itself."""
    order = [(rank + step) % world_size for step in range(world_size)]
    assert [call(address(callee, names[callee]), own_rank) for callee in order] == order


@in_each_mode
def test_a_worker_calls_a_builtin_operator_on_itself(call: Call, rank: int) -> None:
    """Without a way over the network, the result is the same."""
    assert call(rpc.get_worker_info(), torch.add, torch.full((2, 2), rank), 1).tolist() == 2 * [2 * [rank + 1]]


@in_each_mode
@pytest.mark.parametrize("is_beyond", [False, True], ids=["before_the_first", "after_the_last"])
def test_a_rank_that_no_worker_has_is_an_error(call: Call, is_beyond: bool, world_size: int) -> None:
    """A negative one does not count from the end."""
    with pytest.raises(RuntimeError, match=r"find destination|(?i:unknown) destination"):
        call(world_size if is_beyond else -1, torch.add, torch.ones(2), 1)


@in_each_mode
@pytest.mark.parametrize("distance", [-0.5, 0.5])
def test_a_fraction_is_no_rank(call: Call, distance: float, next_rank: int) -> None:
    """It is not rounded to a worker nearby."""
    with pytest.raises(ValueError, match=str(next_rank + distance)):
        call(next_rank + distance, torch.add, torch.ones(2), 1)
