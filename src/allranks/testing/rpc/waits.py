"""Waiting for what RPC does on its own time: failures of peers, and the book-keeping of references."""

import re
import time
from typing import NamedTuple

from torch.distributed import rpc
from torch.distributed.rpc import (  # type: ignore[attr-defined]  # where torch's own suites take it from
    _rref_context_get_debug_info,
)

from allranks.testing.rpc.rpc_world import worker_name
from allranks.testing.shared_files import wait_until

_CALL_TIMEOUT = 60.0
_PAUSE = 0.05
_SHORTEST = 0.01  # torch counts in whole milliseconds, and takes 0 for no limit


class OwnersAndForks(NamedTuple):
    """References to remote objects, as one worker counts them.

    Attributes:
        owners: Objects that this worker owns and that have references.
        forks: References to them, over all workers.
    """

    owners: int
    forks: int


def wait_until_node_failure(rank: int, expected_error_regex: str = ".*", timeout: float = 60.0) -> str:
    """Call a worker again and again until a call fails in the expected way.

    Args:
        rank: The worker.
        expected_error_regex: Searched in the error's text; other errors are ignored.
        timeout: Seconds. A call that this limit cuts short does not count as a failure of the worker.

    Returns:
        The error's text.

    Raises:
        TimeoutError: No call failed in that way; the message has the last other error.
    """
    deadline = time.monotonic() + timeout
    last = "every call was answered"
    while (remaining := deadline - time.monotonic()) > _SHORTEST:
        try:
            rpc.rpc_sync(worker_name(rank), _answer, timeout=min(remaining, _CALL_TIMEOUT))
        except Exception as error:  # noqa: BLE001 - whatever a dead worker makes of a call
            if remaining < _CALL_TIMEOUT and time.monotonic() >= deadline - _SHORTEST:
                last = f"the last call had no answer after {remaining:.3f} s"
            elif re.search(expected_error_regex, str(error)):
                return str(error)
            else:
                last = f"the last error was: {error}"
        time.sleep(_PAUSE)
    msg = f"{worker_name(rank)} did not fail with {expected_error_regex!r} in {timeout:g} s: {last}"
    raise TimeoutError(msg)


def wait_until_pending_futures_and_users_flushed(timeout: float = 20.0) -> None:
    """Wait until the owners of all references of this worker have confirmed them.

    A reference is pending from its creation until its owner has answered. That can be after the call that created it
    has returned, so call this before counting references.

    Args:
        timeout: Seconds.

    Raises:
        TimeoutError: Some are still pending.
    """
    if wait_until(lambda: pending_references() == (0, 0), timeout):
        return
    futures, users = pending_references()
    msg = f"{futures} pending futures and {users} pending users were not flushed within {timeout:g} s"
    raise TimeoutError(msg)


def get_num_owners_and_forks() -> OwnersAndForks:
    """The numbers of references that this worker counts."""
    info = _rref_context_get_debug_info()
    return OwnersAndForks(int(info["num_owner_rrefs"]), int(info["num_forks"]))


def wait_until_owners_and_forks_on_rank(num_owners: int, num_forks: int, rank: int, timeout: float = 20.0) -> None:
    """Wait until a worker counts the expected numbers of references.

    Args:
        num_owners: Objects that it owns and that have references.
        num_forks: References to them.
        rank: The worker; it must answer calls.
        timeout: Seconds; also limits each call.

    Raises:
        TimeoutError: Its numbers are still different.
        RuntimeError: It does not answer.
    """
    expected = OwnersAndForks(num_owners, num_forks)
    deadline = time.monotonic() + timeout
    while (counted := _counted_on(rank, deadline)) != expected:
        if time.monotonic() >= deadline:
            msg = (
                f"{worker_name(rank)} had {counted.owners} owners and {counted.forks} forks after {timeout:g} s, "
                f"not {num_owners} and {num_forks}"
            )
            raise TimeoutError(msg)
        time.sleep(_PAUSE)


def _counted_on(rank: int, deadline: float) -> OwnersAndForks:
    timeout = max(deadline - time.monotonic(), 1.0)
    return OwnersAndForks(*rpc.rpc_sync(worker_name(rank), get_num_owners_and_forks, timeout=timeout))


def pending_references() -> tuple[int, int]:
    """The numbers of pending futures and users of this worker."""
    info = _rref_context_get_debug_info()
    return int(info["num_pending_futures"]), int(info["num_pending_users"])


def _answer() -> None:
    """Do nothing: only the answer of the called worker matters."""
