"""What torch tells about its RPC: the numbers of references, the agent, autograd."""

from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.rpc import _get_debug_info, _rref_context_get_debug_info  # type: ignore[attr-defined]

from allranks.testing import (
    FileBarrier,
    get_num_owners_and_forks,
    wait_until_owners_and_forks_on_rank,
    wait_until_pending_futures_and_users_flushed,
)

from .sent import numbers_of

# What the peer left here: it has to outlive the call.
_kept: list[Any] = []


def keep(reference: Any) -> None:  # noqa: ANN401 - a reference to anything
    """Hold a reference on the callee."""
    _kept.append(reference)


def let_go() -> None:
    """Drop it again."""
    _kept.clear()


def test_own_value_counts_once_it_is_shared(rank: int, next_rank: int, peer: str, file_barrier: FileBarrier) -> None:
    """One that has not left its process is not counted; then it is an owner's with one fork, until that goes."""
    reference = rpc.RRef(rank)
    assert get_num_owners_and_forks() == (0, 0)
    file_barrier()
    rpc.rpc_sync(peer, keep, args=(reference,))
    wait_until_owners_and_forks_on_rank(1, 1, rank=rank)
    wait_until_pending_futures_and_users_flushed()
    file_barrier()
    assert get_num_owners_and_forks() == (1, 1)
    file_barrier()
    rpc.rpc_sync(peer, let_go)
    wait_until_owners_and_forks_on_rank(0, 0, rank=rank)
    wait_until_owners_and_forks_on_rank(0, 0, rank=next_rank)


def test_remote_values_count_on_their_owner(rank: int, next_rank: int, peer: str, file_barrier: FileBarrier) -> None:
    """Two references from one worker are two owners with a fork each on the next, and none is pending."""
    references = [rpc.remote(peer, torch.add, args=(numbers_of(rank), number)) for number in range(2)]
    for reference in references:
        reference.to_here()
    wait_until_pending_futures_and_users_flushed()
    wait_until_owners_and_forks_on_rank(2, 2, rank=next_rank)
    file_barrier()
    info = _rref_context_get_debug_info()
    assert (info["num_owner_rrefs"], info["num_forks"]) == ("2", "2")
    assert (info["num_pending_users"], info["num_pending_futures"]) == ("0", "0")
    file_barrier()


def test_wait_for_the_interpreter_is_measured_on_demand(rank: int, peer: str) -> None:
    """The agent has the figure only while that is enabled."""
    figure = "agent.gil_average_wait_time_us"

    def agent_info() -> dict[str, str]:
        rpc.rpc_sync(peer, torch.add, args=(numbers_of(rank), 1))
        info: dict[str, str] = rpc.api._get_current_rpc_agent().get_debug_info()  # type: ignore[attr-defined]  # noqa: SLF001 - no public name
        return info

    assert figure not in agent_info()
    rpc.enable_gil_profiling(True)  # type: ignore[attr-defined]
    try:
        assert float(agent_info()[figure]) >= 0
    finally:
        rpc.enable_gil_profiling(False)  # type: ignore[attr-defined]
    assert figure not in agent_info()


def test_whole_information_is_that_of_its_parts() -> None:
    """References, agent and autograd have no key in common."""
    agent = rpc.api._get_current_rpc_agent().get_debug_info()  # type: ignore[attr-defined]  # noqa: SLF001 - no public name
    parts = [_rref_context_get_debug_info(), agent, dist_autograd._get_debug_info()]  # type: ignore[attr-defined]  # noqa: SLF001 - as above
    assert all(parts)
    assert sorted(_get_debug_info()) == sorted(key for part in parts for key in part)
