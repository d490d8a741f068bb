"""The RPC world of one test: where its workers meet, its set-up and its end."""

import functools
import hashlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # TCPStore is public, but not exported for mypy
    TCPStore,
    rpc,
)
from torch.distributed.rpc import (  # type: ignore[attr-defined]  # torch has no public way to ask
    _is_current_rpc_agent_set,
)

from allranks.testing.environment import RankEnvironment
from allranks.testing.markers import plain_mark
from allranks.testing.rpc.rpc_agents import DELAYED_MESSAGES, RETRYABLE_MESSAGES, FaultyTensorPipe, RpcAgent, TensorPipe
from allranks.testing.shared_files import put_up, read_when_up
from allranks.testing.stores import host_of


def worker_name(rank: int) -> str:
    """The name that :func:`~allranks.testing.with_rpc` gives a rank's worker."""
    return f"worker{rank}"


class NoMeetingPointError(RuntimeError):
    """The workers of a test have no rendezvous."""


@contextmanager
def meeting_point(environment: RankEnvironment, name: str) -> Iterator[str]:
    """An init method for RPC that no other test can use.

    Rank 0 opens a store on a port that the kernel chooses, and publishes it in a file in the gang's folder. Without an
    agent, as under torchrun, the workers meet at MASTER_ADDR and MASTER_PORT, and torch keeps tests separate.

    Args:
        environment: This rank's environment.
        name: The name of the rendezvous: equal on all ranks, and different for each rendezvous of the gang.

    Yields:
        A URL for ``init_method``; valid within the ``with``.

    Raises:
        NoMeetingPointError: There is no agent, and one of the two variables is not set.
        PeerTimeoutError: Rank 0 did not open the store in time.
    """
    if environment.shared is None and environment.world_size > 1:
        yield _variables_of_torchrun()
    elif environment.rank == 0:
        # multi_tenant: when RPC creates a store at this port in this process, it gets this one.
        host = host_of(environment)
        store = TCPStore(host, 0, environment.world_size, is_master=True, wait_for_workers=False, multi_tenant=True)
        url = f"tcp://{host}:{store.port}"
        if environment.shared is not None:
            put_up(_notice(environment.shared, name), url)
        yield url
        del store
    else:
        yield read_when_up(_notice(environment.shared or Path(), name), "where the RPC workers meet")


def _notice(shared: Path, name: str) -> Path:
    folder = shared / "rpc"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _variables_of_torchrun() -> str:
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if lacking:
        msg = (
            f"the RPC workers have no rendezvous: {' and '.join(lacking)} not set, and no agent of allranks started "
            "them. Run the suite with `allranks run` or torchrun, or pass init_method= to with_rpc."
        )
        raise NoMeetingPointError(msg)
    return "env://"


_TIMEOUT = timedelta(minutes=5)


def initialize_pg(init_method: str, rank: int, world_size: int, *, timeout: timedelta = _TIMEOUT) -> None:
    """Create a default process group over gloo, unless there is one.

    Args:
        init_method: Its rendezvous, which must differ from that of the RPC workers.
        rank: This rank.
        world_size: The number of ranks.
        timeout: Time limit of the rendezvous, and of each collective.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size, timeout=timeout)


P = ParamSpec("P")
R = TypeVar("R")

_CALL_TIMEOUT = 60.0
_SHUTDOWN_TIMEOUT = 60.0
_LEAVING_TIMEOUT = 1.0


@dataclass(frozen=True, kw_only=True)
class WorldWishes:
    """The arguments of :func:`with_rpc`."""

    setup_rpc: bool = True
    clean_shutdown: bool = True
    faulty_messages: Sequence[str] | None = None
    messages_to_delay: Mapping[str, float] | None = None
    agent: RpcAgent | None = None
    init_method: str | None = None
    rpc_timeout: float
    shutdown_timeout: float

    def chosen_agent(self) -> RpcAgent:
        """The agent, as far as the test has said."""
        if self.agent is not None:
            return self.agent
        if self.faulty_messages is None and self.messages_to_delay is None:
            return TensorPipe()
        return FaultyTensorPipe(
            messages_to_fail=RETRYABLE_MESSAGES if self.faulty_messages is None else self.faulty_messages,
            messages_to_delay=DELAYED_MESSAGES if self.messages_to_delay is None else self.messages_to_delay,
        )


@dataclass(frozen=True, kw_only=True)
class _Worker:
    """One rank's part of an RPC world."""

    rank: int
    world_size: int
    backend: Any
    options: Any


@overload
def with_rpc(test: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def with_rpc(
    *,
    setup_rpc: bool = ...,
    clean_shutdown: bool = ...,
    faulty_messages: Sequence[str] | None = ...,
    messages_to_delay: Mapping[str, float] | None = ...,
    agent: RpcAgent | None = ...,
    init_method: str | None = ...,
    rpc_timeout: float = ...,
    shutdown_timeout: float = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def with_rpc(  # noqa: PLR0913 - the four of torch's decorator, by the same names, and four of ours
    test: Callable[P, R] | None = None,
    /,
    *,
    setup_rpc: bool = True,
    clean_shutdown: bool = True,
    faulty_messages: Sequence[str] | None = None,
    messages_to_delay: Mapping[str, float] | None = None,
    agent: RpcAgent | None = None,
    init_method: str | None = None,
    rpc_timeout: float = _CALL_TIMEOUT,
    shutdown_timeout: float = _SHUTDOWN_TIMEOUT,
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Set RPC up before a test and shut it down afterwards, on every rank.

    For test functions and methods, as ``@with_rpc`` or ``@with_rpc(...)``. Rank and world size come from the rank's
    environment, unless the test is a method of an object that has ``rank`` and ``world_size`` itself: a test case that
    starts its own ranks. Such an object may also define the rendezvous (``init_method`` or ``file_name``) and the
    backend (``rpc_backend`` and ``rpc_backend_options``). Its ``setup_fault_injection``, if any, is called first, with
    ``faulty_messages`` and ``messages_to_delay``, and its ``worker_id`` is set to its rank.

    References to remote objects that the test leaves behind are an error when RPC is shut down. After a failed test,
    RPC is shut down without waiting for the peers, so that they notice at once.

    The test gets its own ranks (the marker ``isolation("test")``), because torch supports references only in the first
    world of a process. Without an agent, isolate the test yourself: in a later world, a test with ``rpc.remote`` hangs
    when RPC is shut down.

    Args:
        test: The test, for the form without parentheses.
        setup_rpc: Whether to set RPC up at all; if not, the test does that itself.
        clean_shutdown: Whether to wait at the end until all workers are done; if not, each leaves at once.
        faulty_messages: Message types whose first sends fail; selects the faulty agent.
        messages_to_delay: Delay of messages by type, in seconds; selects the faulty agent.
        agent: The RPC agent, instead of :class:`TensorPipe` or :class:`FaultyTensorPipe`.
        init_method: The rendezvous of the workers, instead of one that only this test uses.
        rpc_timeout: Time limit of a call, in seconds.
        shutdown_timeout: Seconds that a clean shutdown may wait for the peers.

    Raises:
        NoMeetingPointError: From the decorated test, if neither an agent nor torchrun started the ranks.
        RuntimeError: From the decorated test: the peers did not shut down in time, or references are left.
    """
    wishes = WorldWishes(
        setup_rpc=setup_rpc,
        clean_shutdown=clean_shutdown,
        faulty_messages=faulty_messages,
        messages_to_delay=messages_to_delay,
        agent=agent,
        init_method=init_method,
        rpc_timeout=rpc_timeout,
        shutdown_timeout=shutdown_timeout,
    )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _decorated(function, wishes)

    return decorate if test is None else decorate(test)


def _decorated(test: Callable[P, R], wishes: WorldWishes) -> Callable[P, R]:
    digest = hashlib.blake2b(f"{test.__module__}.{test.__qualname__}".encode(), digest_size=8).hexdigest()

    # torch destroys the context of its references at the first shutdown of a process and creates no other (2.13: the
    # owner of a reference from a second world waits 100 s for its deletion), so a test needs its own ranks.
    @plain_mark("isolation", "test")
    @functools.wraps(test)
    def in_world(*args: P.args, **kwargs: P.kwargs) -> R:
        owner = args[0] if args and hasattr(args[0], "rank") and hasattr(args[0], "world_size") else None
        with world_around(owner, wishes, f"{digest}-{number_of_world()}"):
            return test(*args, **kwargs)

    return in_world


def number_of_world() -> int:
    """The number of worlds so far in this process; equal on all ranks, which run the same tests in the same order."""
    return int(getattr(rpc, "_init_counter", 0))


@contextmanager
def world_around(owner: Any, wishes: WorldWishes, meeting: str) -> Iterator[None]:  # noqa: ANN401 - any object with a rank
    """The RPC world that the arguments of :func:`with_rpc` describe, within the ``with``."""
    if owner is not None:
        owner.worker_id = owner.rank
        if hasattr(owner, "setup_fault_injection"):
            owner.setup_fault_injection(wishes.faulty_messages, wishes.messages_to_delay)
    with _counted_references():
        if not wishes.setup_rpc:
            yield
            return
        with _meeting(owner, wishes, meeting) as url:
            _init(_worker_of(owner, wishes, url))
            with _shut_down_after(wishes):
                yield


def _meeting(owner: Any, wishes: WorldWishes, name: str) -> Any:  # noqa: ANN401 - as above
    given = wishes.init_method or getattr(owner, "init_method", None)
    if given is None and getattr(owner, "file_name", None) is not None:
        given = f"file://{owner.file_name}"
    return meeting_point(RankEnvironment.read(), name) if given is None else nullcontext(given)


def _worker_of(owner: Any, wishes: WorldWishes, url: str) -> _Worker:  # noqa: ANN401 - as above
    place = RankEnvironment.read() if owner is None else owner
    agent = wishes.chosen_agent()
    backend = getattr(owner, "rpc_backend", None)
    options = getattr(owner, "rpc_backend_options", None)
    return _Worker(
        rank=place.rank,
        world_size=place.world_size,
        backend=agent.backend if backend is None else backend,
        options=agent.options(url, wishes.rpc_timeout) if options is None else options,
    )


def _init(worker: _Worker) -> None:
    with warnings.catch_warnings():
        # torch warns about itself: its TensorPipe agent compares device maps over a backend without a group.
        warnings.filterwarnings("ignore", "You are using a Backend ", UserWarning)
        rpc.init_rpc(  # type: ignore[no-untyped-call]
            worker_name(worker.rank),
            backend=worker.backend,
            rank=worker.rank,
            world_size=worker.world_size,
            rpc_backend_options=worker.options,
        )


@contextmanager
def _shut_down_after(wishes: WorldWishes) -> Iterator[None]:
    try:
        yield
    except BaseException:
        leave_at_once()
        raise
    # A test may have shut RPC down itself.
    if is_up():
        rpc.shutdown(graceful=wishes.clean_shutdown, timeout=wishes.shutdown_timeout)


def leave_at_once() -> None:
    """Shut RPC down after a failure, without waiting for the peers."""
    forgive_references()
    if is_up():
        # It waits for calls that this worker runs, however long they last; the failure must not.
        leaving = threading.Thread(target=rpc.shutdown, kwargs={"graceful": False}, daemon=True)
        leaving.start()
        leaving.join(_LEAVING_TIMEOUT)


def forgive_references() -> None:
    """Let the world end with references: a failure's traceback can hold them, and their error would hide it."""
    rpc.api._ignore_rref_leak = True  # noqa: SLF001 - torch's only switch for it, put back below


def is_up() -> bool:
    """Whether this process has an RPC agent."""
    return bool(_is_current_rpc_agent_set())


@contextmanager
def _counted_references() -> Iterator[None]:
    """Make torch check at shutdown for remaining references to remote objects; by default it does not."""
    before = getattr(rpc.api, "_ignore_rref_leak", True)
    rpc.api._ignore_rref_leak = False  # noqa: SLF001 - torch's only switch for it
    try:
        yield
    finally:
        rpc.api._ignore_rref_leak = before  # noqa: SLF001 - as above
