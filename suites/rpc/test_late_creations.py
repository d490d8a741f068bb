"""References whose creation does not end within its time limit.

In torch 2.13 such a ``remote`` damages the heap of its process, which may crash some calls later: in a loop of them
four plain processes end by SIGSEGV or SIGABRT within 150 rounds. So each of these tests has ranks of its own.
"""

import pytest
import torch
from torch.distributed import rpc

from allranks.testing import (
    get_timeout_error_regex,
    wait_until_owners_and_forks_on_rank,
    wait_until_pending_futures_and_users_flushed,
    with_rpc,
)

from .gates import SHORT, Gated, closed_gate, wait_at

timed_out = get_timeout_error_regex()


@with_rpc
def test_creation_fails_and_so_does_all_later_use_of_the_reference(next_rank: int, peer: str) -> None:
    """Of one whose limit is an argument of ``remote``."""
    with closed_gate(peer) as gate:
        late = rpc.remote(peer, wait_at, args=(gate,), timeout=SHORT)
        with pytest.raises(RuntimeError, match=timed_out):
            late._get_future().wait()  # noqa: SLF001 - torch has no public way to ask
        wait_until_pending_futures_and_users_flushed()
        with pytest.raises(RuntimeError, match="RRef creation"):
            late.to_here()
    # A reference that is deleted before its owner knows it would be left there.
    wait_until_owners_and_forks_on_rank(1, 1, rank=next_rank)


@with_rpc
def test_limit_of_a_proxy_is_that_of_its_results_creation(rank: int, next_rank: int, peer: str) -> None:
    """The limit is an argument of ``remote`` of a reference to the object; the object stays usable."""
    gated = rpc.remote(peer, Gated, args=("", rank))
    assert gated.rpc_sync().value_at_once() == rank
    with closed_gate(peer) as gate:
        late = gated.remote(timeout=SHORT).value_after(gate)
        with pytest.raises(RuntimeError, match=timed_out):
            late._get_future().wait()  # noqa: SLF001 - as above
    wait_until_owners_and_forks_on_rank(2, 2, rank=next_rank)
    assert torch.equal(gated.rpc_sync().value_after(gate), torch.tensor(rank))
