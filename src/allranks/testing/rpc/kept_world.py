"""An RPC world that many tests share, with a check after each that it left nothing behind."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch.distributed import rpc

from allranks.testing.environment import RankEnvironment
from allranks.testing.rpc.rpc_agents import RpcAgent
from allranks.testing.rpc.rpc_world import (
    WorldWishes,
    forgive_references,
    is_up,
    leave_at_once,
    number_of_world,
    worker_name,
    world_around,
)
from allranks.testing.rpc.waits import get_num_owners_and_forks, pending_references
from allranks.testing.shared_files import wait_until

T = TypeVar("T")

_CALL_TIMEOUT = 60.0
_PEERS_TIMEOUT = 60.0
_REFERENCES_TIMEOUT = 20.0


class RpcWorld:
    """The world of :func:`rpc_world`.

    Args:
        world_size: The number of its workers.

    Attributes:
        has_failed: The last check found a failed test on some rank, or references.
        is_torn: The last check did not reach all ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self.has_failed = False
        self.is_torn = False

    def check(self, *, peers_timeout: float = _PEERS_TIMEOUT, timeout: float = _REFERENCES_TIMEOUT) -> None:
        """Wait for all ranks at the end of a test, and check that it left no references to remote objects.

        Every rank makes this call, also after its test has failed: then none of them checks references, which the
        traceback may hold.

        Args:
            peers_timeout: Seconds to wait until all ranks have made this call.
            timeout: Seconds to wait until the last reference is deleted.

        Raises:
            AssertionError: On every rank: references are left; the message names their owners. Or the test shut RPC
                down, or a worker did not make this call.
            RuntimeError: A worker does not answer.
        """
        self.is_torn = True  # until all ranks have answered
        # References in a cycle are no leak: the exception that pytest.raises returns is in one with its own frame.
        gc.collect()
        # pytest sets it when a test fails, and deletes it before the next.
        has_failed = hasattr(sys, "last_value")
        if not has_failed:  # once all ranks have done so, each owner counts all references that this test has made
            wait_until(lambda: pending_references() == (0, 0), timeout)
        if any(self._gathered(has_failed, peers_timeout + timeout)):
            self.has_failed, self.is_torn = True, False
            return
        wait_until(lambda: not _references(), timeout)
        texts = self._gathered(_references(), peers_timeout + timeout)
        left = [f"{worker_name(rank)} {text}" for rank, text in enumerate(texts) if text]
        self.has_failed, self.is_torn = bool(left), False
        if left:
            msg = f"the test left references to remote objects after {timeout:g} s: {', '.join(left)}"
            raise AssertionError(msg)

    def _gathered(self, value: T, timeout: float) -> list[T]:
        if not is_up():
            msg = "the test shut down the RPC world that it shares with other tests: give it one by with_rpc"
            raise AssertionError(msg)
        # Not public, but what torch's own shutdown is made of. If workers are late, it returns without their values.
        found = rpc.api._all_gather(value, timeout=timeout)  # noqa: SLF001 - as said
        names = [worker_name(rank) for rank in range(self._world_size)]
        if missing := [name for name in names if name not in found]:
            msg = f"{', '.join(missing)} did not come to the end of the test within {timeout:g} s"
            raise AssertionError(msg)
        return [found[name] for name in names]


@contextmanager
def rpc_world(
    *, agent: RpcAgent | None = None, rpc_timeout: float = _CALL_TIMEOUT, shutdown_timeout: float = _PEERS_TIMEOUT
) -> Iterator[RpcWorld]:
    """An RPC world for many tests: for a fixture of wider scope, as long as its ranks are kept.

    The workers have the names of :func:`~allranks.testing.worker_name` and a rendezvous of their own. Only the first
    world of a process has references to remote objects, so let it live as long as the ranks: a module's in a suite
    with ``isolation = "file"``.

    Args:
        agent: The RPC agent; by default :class:`~allranks.testing.TensorPipe`.
        rpc_timeout: Time limit of a call, in seconds.
        shutdown_timeout: Seconds that the shutdown at the end may wait for the peers.

    Yields:
        The world; call its ``check`` after each test.

    Raises:
        NoMeetingPointError: Neither an agent nor torchrun started the ranks.
        RuntimeError: The peers did not shut down in time, or references are left.
    """
    world = RpcWorld(RankEnvironment.read().world_size)
    wishes = WorldWishes(agent=agent, rpc_timeout=rpc_timeout, shutdown_timeout=shutdown_timeout)
    with world_around(None, wishes, f"kept-{number_of_world()}"):
        yield world
        if world.is_torn:
            leave_at_once()
        elif world.has_failed:
            forgive_references()  # but stay until the peers have ended the check, too


def _references() -> str:
    """What this worker counts, in words; empty if it counts none."""
    owners, forks = get_num_owners_and_forks()
    futures, users = pending_references()
    if not (owners or forks or futures or users):
        return ""
    pending = f", and has {futures} pending futures and {users} pending users" if futures or users else ""
    return f"owns {owners} objects with {forks} references{pending}"
