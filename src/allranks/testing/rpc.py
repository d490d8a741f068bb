"""RPC in tests: a world for the time of a test or of many, its agents, and waits for its peers."""

import functools
import gc
import hashlib
import importlib
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, overload

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # TCPStore is public, but not exported for mypy
    TCPStore,
    rpc,
)
from torch.distributed.rpc import (  # type: ignore[attr-defined]  # torch has no public way to ask  # type: ignore[attr-defined]  # where torch's own suites take it from
    _is_current_rpc_agent_set,
    _rref_context_get_debug_info,
)

from allranks.testing.environment import RankEnvironment
from allranks.testing.markers import unregistered_mark
from allranks.testing.shared_files import publish, read_published, wait_until
from allranks.testing.stores import host_of

_SECONDS = 20


@functools.cache
def has_efa() -> bool:
    """Whether this host has an Elastic Fabric Adapter with libfabric's software for it.

    Runs ``fi_info -p efa -t FI_EP_RDM``, as in AWS's manual for EFA, once per process.
    """
    command = ["fi_info", "-p", "efa", "-t", "FI_EP_RDM"]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def tensorpipe_transports() -> list[str] | None:
    """The transports for ``TensorPipeRpcBackendOptions(_transports=...)``.

    On a host with EFA, TensorPipe mistakes the adapter for InfiniBand and fails (pytorch issues 65022 and 73885), so
    there it only gets shared memory and TCP.

    Returns:
        Their names; None for TensorPipe's own choice.
    """
    return ["shm", "uv"] if has_efa() else None


RETRYABLE_MESSAGES = ("RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE", "CLEANUP_AUTOGRAD_CONTEXT_REQ")
"""The messages that torch resends if they fail; losing any other breaks the test itself."""

DELAYED_MESSAGES: Mapping[str, float] = MappingProxyType({"PYTHON_CALL": 1.5, "SCRIPT_CALL": 1.5})
"""The messages that the faulty agent delays by default, with the delay in seconds."""

_FAULTY = "FAULTY_TENSORPIPE"


class RpcAgent(Protocol):
    """An RPC agent for a test."""

    @property
    def backend(self) -> Any:  # noqa: ANN401 - torch makes its enumeration at run time
        """A member of ``torch.distributed.rpc.BackendType``."""

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - each backend has a type of its own
        """The options of the backend; the time limit of a call is in seconds."""


@dataclass(frozen=True, kw_only=True)
class TensorPipe:
    """torch's own agent, over transports that work on this host.

    Args:
        worker_threads: The number of threads that execute calls in a worker.
    """

    worker_threads: int = 16

    @property
    def backend(self) -> Any:  # noqa: ANN401 - as above
        """``BackendType.TENSORPIPE``."""
        return rpc.backend_registry.BackendType["TENSORPIPE"]

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - as above
        """Its options; the transports are those of :func:`~allranks.testing.tensorpipe_transports`."""
        return rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=self.worker_threads,
            rpc_timeout=timeout,
            init_method=init_method,
            _transports=tensorpipe_transports(),
        )


@dataclass(frozen=True, kw_only=True)
class FaultyTensorPipe:
    """torch's agent for tests of failures: it loses and delays messages.

    Args:
        messages_to_fail: Names of message types whose first sends fail.
        messages_to_delay: Delay of messages by type, in seconds.
        failing_sends: The number of failed sends before a message gets through.
        worker_threads: The number of threads that execute calls in a worker.
    """

    messages_to_fail: Sequence[str] = RETRYABLE_MESSAGES
    messages_to_delay: Mapping[str, float] = field(default_factory=lambda: DELAYED_MESSAGES)
    failing_sends: int = 3
    worker_threads: int = 8

    @property
    def backend(self) -> Any:  # noqa: ANN401 - as above
        """``BackendType.FAULTY_TENSORPIPE``.

        Raises:
            RuntimeError: This torch was built without it.
        """
        # The import registers the backend.
        module = importlib.import_module("torch.distributed.rpc._testing")
        if not module.is_available():
            msg = "this torch is built without the faulty RPC agent: skip the test, or use a build that has it"
            raise RuntimeError(msg)
        return rpc.backend_registry.BackendType[_FAULTY]

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - as above
        """Its options."""
        return rpc.backend_registry.construct_rpc_backend_options(  # type: ignore[no-untyped-call]
            self.backend,
            rpc_timeout=timeout,
            init_method=init_method,
            num_worker_threads=self.worker_threads,
            num_fail_sends=self.failing_sends,
            messages_to_fail=list(self.messages_to_fail),
            messages_to_delay=dict(self.messages_to_delay),
        )


TIMEOUT_ERROR_REGEX = re.escape("RPC ran for more than")
"""Text in the error of a call that took too long, with either agent."""

_FAULTY_SHUTDOWN_ERRORS = (
    "Exception in thread pool task",
    "Connection reset by peer",
    "Connection closed by peer",
)


def get_timeout_error_regex() -> str:
    """A regular expression for the error of a call that took too long, a ``RuntimeError``."""
    return TIMEOUT_ERROR_REGEX


def get_shutdown_error_regex(backend: object) -> str:
    """A regular expression for the errors of a call whose callee shuts down.

    Args:
        backend: The name of the backend, or its member of ``BackendType``.

    Returns:
        For TensorPipe one that matches everything: the error depends on the timing and the transport.
    """
    if getattr(backend, "name", backend) != _FAULTY:
        return ".*"
    return "|".join(f"({re.escape(words)})" for words in _FAULTY_SHUTDOWN_ERRORS)


_CALL_TIMEOUT = 60.0


class TensorPipeRpcAgentTestFixture:
    """TensorPipe, and four ranks that meet at the file of the test case.

    A mixin for a class with ``rank`` and ``file_name``; :func:`~allranks.testing.with_rpc` reads the other members.
    """

    file_name: str

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return 4

    @property
    def init_method(self) -> str:
        """The rendezvous of the workers."""
        return f"file://{self.file_name}"

    @property
    def rpc_agent(self) -> RpcAgent:
        """The transport of the tests."""
        return TensorPipe()

    @property
    def rpc_backend(self) -> Any:  # noqa: ANN401 - torch makes its enumeration at run time
        """The backend of the agent."""
        return self.rpc_agent.backend

    @property
    def rpc_backend_options(self) -> Any:  # noqa: ANN401 - each backend has a type of its own
        """The options of the agent."""
        return self.rpc_agent.options(self.init_method, _CALL_TIMEOUT)

    def setup_fault_injection(
        self, faulty_messages: Sequence[str] | None, messages_to_delay: Mapping[str, float] | None
    ) -> None:
        """Do nothing: this agent loses and delays no messages."""

    def get_shutdown_error_regex(self) -> str:
        """A regular expression for the errors of a call whose callee shuts down."""
        return get_shutdown_error_regex(self.rpc_backend)

    def get_timeout_error_regex(self) -> str:
        """A regular expression for the error of a call that took too long."""
        return get_timeout_error_regex()


class FaultyRpcAgentTestFixture(TensorPipeRpcAgentTestFixture):
    """The faulty agent; each test selects faulty messages by :func:`~allranks.testing.with_rpc`."""

    messages_to_fail: Sequence[str] = RETRYABLE_MESSAGES
    messages_to_delay: Mapping[str, float] = DELAYED_MESSAGES

    @property
    def rpc_agent(self) -> RpcAgent:
        """The transport of the tests."""
        return FaultyTensorPipe(messages_to_fail=self.messages_to_fail, messages_to_delay=self.messages_to_delay)

    def setup_fault_injection(
        self, faulty_messages: Sequence[str] | None, messages_to_delay: Mapping[str, float] | None
    ) -> None:
        """Set which messages fail or are late; None changes nothing."""
        if faulty_messages is not None:
            self.messages_to_fail = faulty_messages
        if messages_to_delay is not None:
            self.messages_to_delay = messages_to_delay


def worker_name(rank: int) -> str:
    """The name that :func:`~allranks.testing.with_rpc` gives a rank's worker."""
    return f"worker{rank}"


class NoMeetingPointError(RuntimeError):
    """The workers of a test have no rendezvous."""


@contextmanager
def rpc_rendezvous(environment: RankEnvironment, name: str) -> Iterator[str]:
    """An init method for RPC that no other test can use.

    Rank 0 opens a store on a port that the kernel chooses, and publishes it in a file in the gang's folder. Without an
    agent, as under torchrun, the workers meet at MASTER_ADDR and MASTER_PORT, and torch keeps tests separate. The name
    is equal on all ranks, and different for each rendezvous of the gang.
    """
    if environment.shared is None and environment.world_size > 1:
        yield _variables_of_torchrun()
    elif environment.rank == 0:
        # multi_tenant: when RPC creates a store at this port in this process, it gets this one.
        host = host_of(environment)
        store = TCPStore(host, 0, environment.world_size, is_master=True, wait_for_workers=False, multi_tenant=True)
        url = f"tcp://{host}:{store.port}"
        if environment.shared is not None:
            publish(_notice(environment.shared, name), url)
        yield url
        del store
    else:
        yield read_published(_notice(environment.shared or Path(), name), "where the RPC workers meet")


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

_SHUTDOWN_TIMEOUT = 60.0
_LEAVING_TIMEOUT = 1.0


@dataclass(frozen=True, kw_only=True)
class WorldOptions:
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
    wishes = WorldOptions(
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


def _decorated(test: Callable[P, R], wishes: WorldOptions) -> Callable[P, R]:
    digest = hashlib.blake2b(f"{test.__module__}.{test.__qualname__}".encode(), digest_size=8).hexdigest()

    # torch destroys the context of its references at the first shutdown of a process and creates no other (2.13: the
    # owner of a reference from a second world waits 100 s for its deletion), so a test needs its own ranks.
    @unregistered_mark("isolation", "test")
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
def world_around(owner: Any, wishes: WorldOptions, meeting: str) -> Iterator[None]:  # noqa: ANN401 - any object with a rank
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


def _meeting(owner: Any, wishes: WorldOptions, name: str) -> Any:  # noqa: ANN401 - as above
    given = wishes.init_method or getattr(owner, "init_method", None)
    if given is None and getattr(owner, "file_name", None) is not None:
        given = f"file://{owner.file_name}"
    return rpc_rendezvous(RankEnvironment.read(), name) if given is None else nullcontext(given)


def _worker_of(owner: Any, wishes: WorldOptions, url: str) -> _Worker:  # noqa: ANN401 - as above
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
def _shut_down_after(wishes: WorldOptions) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shut_down_at_once()
        raise
    # A test may have shut RPC down itself.
    if is_up():
        rpc.shutdown(graceful=wishes.clean_shutdown, timeout=wishes.shutdown_timeout)


def shut_down_at_once() -> None:
    """Shut RPC down after a failure, without waiting for the peers."""
    ignore_rref_leaks()
    if is_up():
        # It waits for calls that this worker runs, however long they last; the failure must not.
        leaving = threading.Thread(target=rpc.shutdown, kwargs={"graceful": False}, daemon=True)
        leaving.start()
        leaving.join(_LEAVING_TIMEOUT)


def ignore_rref_leaks() -> None:
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


T = TypeVar("T")

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
    wishes = WorldOptions(agent=agent, rpc_timeout=rpc_timeout, shutdown_timeout=shutdown_timeout)
    with world_around(None, wishes, f"kept-{number_of_world()}"):
        yield world
        if world.is_torn:
            shut_down_at_once()
        elif world.has_failed:
            ignore_rref_leaks()  # but stay until the peers have ended the check, too


def _references() -> str:
    """What this worker counts, in words; empty if it counts none."""
    owners, forks = get_num_owners_and_forks()
    futures, users = pending_references()
    if not (owners or forks or futures or users):
        return ""
    pending = f", and has {futures} pending futures and {users} pending users" if futures or users else ""
    return f"owns {owners} objects with {forks} references{pending}"
