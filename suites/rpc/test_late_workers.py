"""Meetings that a worker does not come to in time. Each test has a world of its own, and ends or upsets it."""

import pytest
from torch.distributed import rpc

from allranks.testing import FileBarrier, get_timeout_error_regex, with_rpc, worker_name

from .callees import open_gate, wait_at

pytestmark = pytest.mark.require_world_size(2)

_all_gather = rpc.api._all_gather  # noqa: SLF001 - torch has no public name for it


class Held:
    """An object that blocks the worker that unpickles it until that worker's gate is open.

    Args:
        gate: The name of the gate.
    """

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def __setstate__(self, state: dict[str, str]) -> None:
        """Wait at the gate of the worker that this arrives at."""
        self.__dict__.update(state)
        wait_at(self.gate)


def _open_all(world_size: int) -> None:
    for rank in range(world_size):
        open_gate(f"held by {rank}")


@with_rpc
def test_gathering_that_takes_too_long_is_an_error_of_each_worker(
    rank: int, world_size: int, file_barrier: FileBarrier
) -> None:
    """The followers' when the leader does not answer, and the leader's when they do not: it names them."""
    rpc._set_rpc_timeout(0.1)  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public name for it
    if rank > 0:
        with pytest.raises(RuntimeError, match=get_timeout_error_regex()):
            _all_gather(Held(f"held by {rank}"))
        rpc.rpc_sync(worker_name(0), open_gate, args=(f"held by {rank}",), timeout=60)
    else:
        followers = ", ".join(f"'{worker_name(follower)}'" for follower in range(1, world_size))
        with pytest.raises(RuntimeError, match=r"timed out in _all_gather after 0\.10 seconds") as caught:
            _all_gather(Held("held by 0"))
        named = str(caught.value).partition("]")[0].partition("[")[2]
        assert sorted(named.split(", ")) == sorted(followers.split(", "))
    rpc._set_rpc_timeout(60)  # type: ignore[attr-defined]  # noqa: SLF001 - as above
    file_barrier()
    _open_all(world_size)


@with_rpc(clean_shutdown=False)
def test_a_shutdown_that_takes_too_long_is_an_error_of_each_worker(
    rank: int, world_size: int, file_barrier: FileBarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And RPC is shut down all the same."""

    def wait_for_held(timeout: float) -> None:
        try:
            _all_gather(Held(f"held by {rank}"), timeout=timeout)
        finally:
            file_barrier()
            _open_all(world_size)

    monkeypatch.setattr(rpc.api, "_wait_all_workers", wait_for_held)
    with pytest.raises(RuntimeError, match=f"{get_timeout_error_regex()}|timed out in _all_gather"):
        rpc.shutdown(timeout=0.1)
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        rpc.get_worker_info()
