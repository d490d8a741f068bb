"""Meetings of workers: gathering what each has, and barriers over all or some of them."""

from concurrent.futures import ThreadPoolExecutor
from types import FunctionType

import pytest
from torch.distributed import rpc

from allranks.testing import worker_name

from .callees import count, counted

pytestmark = pytest.mark.require_world_size(2)

_all_gather = rpc.api._all_gather  # noqa: SLF001 - torch has no public name for them
_barrier = rpc.api._barrier  # noqa: SLF001 - as above


def test_every_worker_gathers_what_each_has(rank: int, names: list[str]) -> None:
    """By name."""
    assert _all_gather(10 * rank) == {name: 10 * number for number, name in enumerate(names)}


def test_workers_gather_again_and_again(rank: int, names: list[str]) -> None:
    """No value of an earlier meeting is among those of a later one."""
    for step in range(5):
        assert _all_gather((rank, step)) == {name: (number, step) for number, name in enumerate(names)}


def _everyone(_: int, world_size: int) -> list[int]:
    return [*range(world_size)]


def _same_parity(rank: int, world_size: int) -> list[int]:
    return [*range(rank % 2, world_size, 2)]


def _odd_or_alone(rank: int, world_size: int) -> list[int]:
    return [*range(1, world_size, 2)] if rank % 2 else [rank]


@pytest.mark.parametrize("members", [_everyone, _same_parity, _odd_or_alone])
def test_a_barrier_holds_a_worker_until_all_members_are_there(
    members: FunctionType, rank: int, world_size: int
) -> None:
    """All, the two halves at the same time, or a half while the rest does not take part."""
    ranks = members(rank, world_size)
    leader, key = worker_name(ranks[0]), (members.__qualname__, *ranks)
    for turn in range(1, 4):
        rpc.rpc_sync(leader, count, args=(key,))
        _barrier([worker_name(member) for member in ranks])
        assert rpc.rpc_sync(leader, counted, args=(key,)) == turn * len(ranks)
        # Nobody counts again before all have looked.
        _barrier([worker_name(member) for member in ranks])


def test_threads_of_a_worker_meet_those_of_others(names: list[str]) -> None:
    """Three at a time: whichever threads meet, none is left behind."""

    def meet(_: int) -> int:
        rpc.rpc_sync(names[0], count, args=("threads",))
        _barrier(names)
        return int(rpc.rpc_sync(names[0], counted, args=("threads",)))

    with ThreadPoolExecutor(3) as pool:
        seen = [*pool.map(meet, range(3))]
    assert min(seen) >= len(names)
    _barrier(names)
    assert rpc.rpc_sync(names[0], counted, args=("threads",)) == 3 * len(names)
