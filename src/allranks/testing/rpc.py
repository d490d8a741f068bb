"""Helpers for tests of ``torch.distributed.rpc``: worlds for one or several tests, agents, and waiting for peers."""

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
from torch.distributed.rpc import (  # type: ignore[attr-defined]  # torch has no public API for this
    _is_current_rpc_agent_set,
    _rref_context_get_debug_info,
)

from allranks.testing.environment import RankEnvironment
from allranks.testing.markers import unregistered_mark
from allranks.testing.shared_files import publish, read_published, wait_until
from allranks.testing.stores import host_of

_EFA_TIMEOUT = 20  # seconds


@functools.cache
def has_efa() -> bool:
    """Whether this host has an Elastic Fabric Adapter (EFA) that libfabric supports.

    This runs ``fi_info -p efa -t FI_EP_RDM``, as AWS recommends, once per process.
    """
    command = ["fi_info", "-p", "efa", "-t", "FI_EP_RDM"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=_EFA_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def tensorpipe_transports() -> list[str] | None:
    """The transports for ``TensorPipeRpcBackendOptions(_transports=...)``.

    On hosts with EFA, these are only shared memory and TCP, because TensorPipe mistakes the adapter for InfiniBand and
    fails (pytorch issues 65022 and 73885).

    Returns:
        The names of the transports; None lets TensorPipe choose.
    """
    return ["shm", "uv"] if has_efa() else None


RETRYABLE_MESSAGES = ("RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE", "CLEANUP_AUTOGRAD_CONTEXT_REQ")
"""The message types that torch resends if they fail; if any other message is lost, the test fails."""

DELAYED_MESSAGES: Mapping[str, float] = MappingProxyType({"PYTHON_CALL": 1.5, "SCRIPT_CALL": 1.5})
"""The message types that the faulty agent delays by default, with the delays in seconds."""

_FAULTY = "FAULTY_TENSORPIPE"


class RpcAgent(Protocol):
    """The interface of RPC agents, such as :class:`TensorPipe` and :class:`FaultyTensorPipe`."""

    @property
    def backend(self) -> Any:  # noqa: ANN401 - torch creates its enumeration at run time
        """The backend of the agent, a member of ``torch.distributed.rpc.BackendType``."""

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - each backend has its own type
        """Create the options of the backend.

        Args:
            init_method: The URL for the rendezvous of the workers.
            timeout: Time limit of a call, in seconds.

        Returns:
            The options for ``torch.distributed.rpc.init_rpc``.
        """


@dataclass(frozen=True, kw_only=True)
class TensorPipe:
    """torch's TensorPipe agent, with transports that work on this host.

    Attributes:
        worker_threads: The number of threads that execute calls in a worker.
    """

    worker_threads: int = 16

    @property
    def backend(self) -> Any:  # noqa: ANN401 - as above
        """``BackendType.TENSORPIPE``."""
        return rpc.backend_registry.BackendType["TENSORPIPE"]

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - as above
        """Create the options for ``init_rpc``, with the transports of :func:`tensorpipe_transports`."""
        return rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=self.worker_threads,
            rpc_timeout=timeout,
            init_method=init_method,
            _transports=tensorpipe_transports(),
        )


@dataclass(frozen=True, kw_only=True)
class FaultyTensorPipe:
    """torch's agent for tests of failures, which loses and delays messages.

    Attributes:
        messages_to_fail: The message types whose first sends fail.
        messages_to_delay: The delay of each message type, in seconds.
        failing_sends: The number of sends of a message that fail before one succeeds.
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
            RuntimeError: This torch was built without the faulty agent.
        """
        # The import registers the backend.
        module = importlib.import_module("torch.distributed.rpc._testing")
        if not module.is_available():
            msg = "this torch was built without the faulty RPC agent: skip the test, or use a build that has it"
            raise RuntimeError(msg)
        return rpc.backend_registry.BackendType[_FAULTY]

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - as above
        """Create the options for ``init_rpc``, with the faulty messages of this agent."""
        return rpc.backend_registry.construct_rpc_backend_options(  # type: ignore[no-untyped-call]
            self.backend,
            rpc_timeout=timeout,
            init_method=init_method,
            num_worker_threads=self.worker_threads,
            num_fail_sends=self.failing_sends,
            messages_to_fail=list(self.messages_to_fail),
            messages_to_delay=dict(self.messages_to_delay),
        )


_FAULTY_SHUTDOWN_ERRORS = (
    "Exception in thread pool task",
    "Connection reset by peer",
    "Connection closed by peer",
)


def get_timeout_error_regex() -> str:
    """A regular expression for the ``RuntimeError`` of a call that exceeds its time limit, with either agent."""
    return re.escape("RPC ran for more than")


def get_shutdown_error_regex(backend: object) -> str:
    """A regular expression for the errors of a call whose callee shuts down.

    Args:
        backend: The name of the backend, or a member of ``BackendType``.

    Returns:
        The regular expression. For TensorPipe, it matches every text, because the error depends on the timing and on
        the transport.
    """
    if getattr(backend, "name", backend) != _FAULTY:
        return ".*"
    return "|".join(f"({re.escape(message)})" for message in _FAULTY_SHUTDOWN_ERRORS)


_CALL_TIMEOUT = 60.0


class TensorPipeRpcAgentTestFixture:
    """A mixin for test cases that use TensorPipe with four ranks and a rendezvous at the test case's file.

    The class must have the attributes ``rank`` and ``file_name``, like
    :class:`~allranks.testing.MultiProcessTestCase`. Decorate its tests with :func:`~allranks.testing.with_rpc`, which
    uses the other attributes.
    """

    file_name: str

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return 4

    @property
    def init_method(self) -> str:
        """The URL for the rendezvous of the workers."""
        return f"file://{self.file_name}"

    @property
    def rpc_agent(self) -> RpcAgent:
        """The RPC agent of the tests."""
        return TensorPipe()

    @property
    def rpc_backend(self) -> Any:  # noqa: ANN401 - torch creates its enumeration at run time
        """The backend of the agent, a member of ``BackendType``."""
        return self.rpc_agent.backend

    @property
    def rpc_backend_options(self) -> Any:  # noqa: ANN401 - each backend has its own type
        """The options of the agent; the time limit of a call is 60 seconds."""
        return self.rpc_agent.options(self.init_method, _CALL_TIMEOUT)

    def setup_fault_injection(
        self, faulty_messages: Sequence[str] | None, messages_to_delay: Mapping[str, float] | None
    ) -> None:
        """Do nothing: this agent does not lose or delay messages."""

    def get_shutdown_error_regex(self) -> str:
        """The regular expression of :func:`~allranks.testing.get_shutdown_error_regex` for this agent."""
        return get_shutdown_error_regex(self.rpc_backend)

    def get_timeout_error_regex(self) -> str:
        """The regular expression of :func:`~allranks.testing.get_timeout_error_regex`."""
        return get_timeout_error_regex()


class FaultyRpcAgentTestFixture(TensorPipeRpcAgentTestFixture):
    """A mixin like :class:`TensorPipeRpcAgentTestFixture`, with the faulty agent.

    Each test can select the faulty messages with the arguments of :func:`~allranks.testing.with_rpc`.
    """

    messages_to_fail: Sequence[str] = RETRYABLE_MESSAGES
    messages_to_delay: Mapping[str, float] = DELAYED_MESSAGES

    @property
    def rpc_agent(self) -> RpcAgent:
        """The RPC agent of the tests."""
        return FaultyTensorPipe(messages_to_fail=self.messages_to_fail, messages_to_delay=self.messages_to_delay)

    def setup_fault_injection(
        self, faulty_messages: Sequence[str] | None, messages_to_delay: Mapping[str, float] | None
    ) -> None:
        """Select the faulty messages of the test; called by :func:`~allranks.testing.with_rpc`.

        Args:
            faulty_messages: The message types whose first sends fail; None does not change them.
            messages_to_delay: The delay of each message type, in seconds; None does not change them.
        """
        if faulty_messages is not None:
            self.messages_to_fail = faulty_messages
        if messages_to_delay is not None:
            self.messages_to_delay = messages_to_delay


def worker_name(rank: int) -> str:
    """The name of a rank's RPC worker in a world of :func:`with_rpc` or :func:`rpc_world`, such as ``"worker0"``."""
    return f"worker{rank}"


class NoMeetingPointError(RuntimeError):
    """The RPC workers have no rendezvous: neither an agent nor torchrun started the ranks."""


@contextmanager
def rpc_rendezvous(environment: RankEnvironment, name: str) -> Iterator[str]:
    """An init method for RPC that no other test uses.

    Rank 0 opens a store on a port that the kernel chooses, and publishes it in a file in the gang's folder. Without an
    agent, for example under torchrun, the rendezvous is at MASTER_ADDR and MASTER_PORT, with other keys for each test.
    The name must be the same on all ranks, and different for each rendezvous of the gang.
    """
    if environment.shared is None and environment.world_size > 1:
        yield _env_init_method()
    elif environment.rank == 0:
        # With multi_tenant, the store that RPC creates in this process at the same port is this one.
        host = host_of(environment)
        store = TCPStore(host, 0, environment.world_size, is_master=True, wait_for_workers=False, multi_tenant=True)
        url = f"tcp://{host}:{store.port}"
        if environment.shared is not None:
            publish(_rendezvous_file(environment.shared, name), url)
        yield url
        del store
    else:
        path = _rendezvous_file(environment.shared or Path(), name)
        yield read_published(path, "the address for the rendezvous of the RPC workers")


def _rendezvous_file(shared: Path, name: str) -> Path:
    folder = shared / "rpc"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _env_init_method() -> str:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        msg = (
            f"the RPC workers have no rendezvous: {' and '.join(missing)} not set, and allranks did not start the "
            "ranks. Run the suite with `allranks run` or torchrun, or pass init_method= to with_rpc."
        )
        raise NoMeetingPointError(msg)
    return "env://"


_TIMEOUT = timedelta(minutes=5)


def initialize_pg(init_method: str, rank: int, world_size: int, *, timeout: timedelta = _TIMEOUT) -> None:
    """Create a default process group with gloo, unless there already is one.

    Args:
        init_method: The URL for the rendezvous, which must differ from that of the RPC workers.
        rank: This rank, from 0.
        world_size: The number of ranks.
        timeout: Time limit of the rendezvous and of each collective.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size, timeout=timeout)


P = ParamSpec("P")
R = TypeVar("R")

_SHUTDOWN_TIMEOUT = 60.0
_SHUTDOWN_AFTER_FAILURE = 1.0


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
        """The agent that these options select."""
        if self.agent is not None:
            return self.agent
        if self.faulty_messages is None and self.messages_to_delay is None:
            return TensorPipe()
        return FaultyTensorPipe(
            messages_to_fail=RETRYABLE_MESSAGES if self.faulty_messages is None else self.faulty_messages,
            messages_to_delay=DELAYED_MESSAGES if self.messages_to_delay is None else self.messages_to_delay,
        )


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


def with_rpc(  # noqa: PLR0913 - four arguments of torch's decorator, and four more
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
    """Initialize RPC before a test, and shut it down afterwards, on all ranks.

    Use it on test functions and methods, as ``@with_rpc`` or ``@with_rpc(...)``. The rank and the world size are those
    of the rank's environment, unless the test is a method of an object with its own ``rank`` and ``world_size``, such
    as :class:`~allranks.testing.MultiProcessTestCase`. Such an object may also define the rendezvous (``init_method``
    or ``file_name``) and the backend (``rpc_backend`` and ``rpc_backend_options``). Its method
    ``setup_fault_injection``, if it has one, is called first with ``faulty_messages`` and ``messages_to_delay``, and
    its ``worker_id`` is set to its rank.

    If the test leaves references to remote objects (``RRef``) behind, the shutdown raises an error. After a failed
    test, RPC is shut down without waiting for the peers, so that their calls fail soon.

    The decorator adds the marker ``isolation("test")``, so each test gets new ranks: torch supports references only in
    the first RPC world of a process. Without an agent, run the test in a new process: in a later world, the shutdown
    hangs after a test that uses ``rpc.remote``.

    Args:
        test: The test, if the decorator is used without parentheses.
        setup_rpc: Whether to initialize RPC; if False, the test must do this itself.
        clean_shutdown: Whether each worker waits at the end until all workers are done.
        faulty_messages: The message types whose first sends fail; selects :class:`FaultyTensorPipe`.
        messages_to_delay: The delay of each message type, in seconds; selects :class:`FaultyTensorPipe`.
        agent: The RPC agent; by default, :class:`TensorPipe` or :class:`FaultyTensorPipe`.
        init_method: The URL for the rendezvous of the workers; by default, one that only this test uses.
        rpc_timeout: Time limit of a call, in seconds.
        shutdown_timeout: Time limit in seconds for waiting for the peers in a clean shutdown.

    Returns:
        The decorated test, or a decorator.

    Raises:
        NoMeetingPointError: From the decorated test: neither an agent nor torchrun started the ranks.
        RuntimeError: From the decorated test: the peers did not shut down in time, or references are left.
    """
    options = WorldOptions(
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
        return _decorated(function, options)

    return decorate if test is None else decorate(test)


def _decorated(test: Callable[P, R], options: WorldOptions) -> Callable[P, R]:
    digest = hashlib.blake2b(f"{test.__module__}.{test.__qualname__}".encode(), digest_size=8).hexdigest()

    # torch destroys its context for references at the first shutdown of RPC in a process, and does not create a new one
    # (with torch 2.13, the owner of a reference in a second world waits 100 s for its deletion).
    @unregistered_mark("isolation", "test")
    @functools.wraps(test)
    def in_world(*args: P.args, **kwargs: P.kwargs) -> R:
        owner = args[0] if args and hasattr(args[0], "rank") and hasattr(args[0], "world_size") else None
        with world_around(owner, options, f"{digest}-{number_of_world()}"):
            return test(*args, **kwargs)

    return in_world


def number_of_world() -> int:
    """How many RPC worlds this process has had; the same on all ranks, which run the same tests in the same order."""
    return int(getattr(rpc, "_init_counter", 0))


@contextmanager
def world_around(owner: Any, options: WorldOptions, name: str) -> Iterator[None]:  # noqa: ANN401 - any object with a rank
    """Create the RPC world that the arguments of :func:`with_rpc` describe, for a ``with`` block."""
    if owner is not None:
        owner.worker_id = owner.rank
        if hasattr(owner, "setup_fault_injection"):
            owner.setup_fault_injection(options.faulty_messages, options.messages_to_delay)
    with _checking_references():
        if not options.setup_rpc:
            yield
            return
        with _rendezvous(owner, options, name) as url:
            _init(owner, options, url)
            with _shut_down_after(options):
                yield


def _rendezvous(owner: Any, options: WorldOptions, name: str) -> Any:  # noqa: ANN401 - as above
    init_method = options.init_method or getattr(owner, "init_method", None)
    if init_method is None and getattr(owner, "file_name", None) is not None:
        init_method = f"file://{owner.file_name}"
    return rpc_rendezvous(RankEnvironment.read(), name) if init_method is None else nullcontext(init_method)


def _init(owner: Any, options: WorldOptions, url: str) -> None:  # noqa: ANN401 - as above
    member = RankEnvironment.read() if owner is None else owner
    agent = options.chosen_agent()
    backend = getattr(owner, "rpc_backend", None)
    backend_options = getattr(owner, "rpc_backend_options", None)
    with warnings.catch_warnings():
        # Caused by torch itself: its TensorPipe agent exchanges device maps through a backend without a group.
        warnings.filterwarnings("ignore", "You are using a Backend ", UserWarning)
        rpc.init_rpc(  # type: ignore[no-untyped-call]
            worker_name(member.rank),
            backend=agent.backend if backend is None else backend,
            rank=member.rank,
            world_size=member.world_size,
            rpc_backend_options=agent.options(url, options.rpc_timeout) if backend_options is None else backend_options,
        )


@contextmanager
def _shut_down_after(options: WorldOptions) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shut_down_at_once()
        raise
    # A test may have shut RPC down itself.
    if is_up():
        rpc.shutdown(graceful=options.clean_shutdown, timeout=options.shutdown_timeout)


def shut_down_at_once() -> None:
    """Shut RPC down after a failure, without waiting for the peers."""
    ignore_rref_leaks()
    if is_up():
        # The shutdown has no time limit: it waits until this worker has executed its calls. Do not wait as long.
        shutdown = threading.Thread(target=rpc.shutdown, kwargs={"graceful": False}, daemon=True)
        shutdown.start()
        shutdown.join(_SHUTDOWN_AFTER_FAILURE)


def ignore_rref_leaks() -> None:
    """Disable the check for remaining references: the traceback of a failure can hold some, and would be hidden."""
    rpc.api._ignore_rref_leak = True  # noqa: SLF001 - torch has no public API for this; restored below


def is_up() -> bool:
    """Whether RPC is initialized in this process."""
    return bool(_is_current_rpc_agent_set())


@contextmanager
def _checking_references() -> Iterator[None]:
    """Make torch check for remaining references to remote objects at shutdown, which it does not do by default."""
    before = getattr(rpc.api, "_ignore_rref_leak", True)
    rpc.api._ignore_rref_leak = False  # noqa: SLF001 - torch has no public API for this
    try:
        yield
    finally:
        rpc.api._ignore_rref_leak = before  # noqa: SLF001 - as above


_PAUSE = 0.05
_SHORTEST = 0.01  # torch rounds time limits to milliseconds, and 0 means no limit


class OwnersAndForks(NamedTuple):
    """The references to remote objects that one worker counts.

    Attributes:
        owners: The number of objects that this worker owns and that have references.
        forks: The number of references to these objects in all workers.
    """

    owners: int
    forks: int


def wait_until_node_failure(rank: int, expected_error_regex: str = ".*", timeout: float = 60.0) -> str:
    """Call a worker repeatedly until a call fails with the expected error.

    Args:
        rank: The rank of the worker.
        expected_error_regex: A regular expression for the error message, used with ``re.search``. Other errors are
            ignored.
        timeout: Time limit in seconds. A call that ends because of this limit does not count as a failure.

    Returns:
        The error message.

    Raises:
        TimeoutError: No call failed with the expected error; the message contains the last other error.
    """
    deadline = time.monotonic() + timeout
    last = "all calls succeeded"
    while (remaining := deadline - time.monotonic()) > _SHORTEST:
        try:
            rpc.rpc_sync(worker_name(rank), _do_nothing, timeout=min(remaining, _CALL_TIMEOUT))
        except Exception as error:  # noqa: BLE001 - calls of a dead worker raise various exceptions
            if remaining < _CALL_TIMEOUT and time.monotonic() >= deadline - _SHORTEST:
                last = f"the last call had no result after {remaining:.3f} s"
            elif re.search(expected_error_regex, str(error)):
                return str(error)
            else:
                last = f"the last error was: {error}"
        time.sleep(_PAUSE)
    msg = f"{worker_name(rank)} did not fail with {expected_error_regex!r} within {timeout:g} s: {last}"
    raise TimeoutError(msg)


def wait_until_pending_futures_and_users_flushed(timeout: float = 20.0) -> None:
    """Wait until no reference of this worker is pending.

    A reference is pending until its owner has confirmed it, which can be after the call that created it has returned.
    Call this function before you count references.

    Args:
        timeout: Time limit in seconds.

    Raises:
        TimeoutError: Some references are still pending.
    """
    if wait_until(lambda: pending_references() == (0, 0), timeout):
        return
    futures, users = pending_references()
    msg = f"pending futures ({futures}) and users ({users}) were not flushed within {timeout:g} s"
    raise TimeoutError(msg)


def get_num_owners_and_forks() -> OwnersAndForks:
    """Count the references to remote objects in this worker."""
    info = _rref_context_get_debug_info()
    return OwnersAndForks(int(info["num_owner_rrefs"]), int(info["num_forks"]))


def wait_until_owners_and_forks_on_rank(num_owners: int, num_forks: int, rank: int, timeout: float = 20.0) -> None:
    """Wait until a worker counts the expected numbers of references.

    Args:
        num_owners: The expected number of objects that the worker owns and that have references.
        num_forks: The expected number of references to these objects.
        rank: The rank of the worker, which must be able to execute calls.
        timeout: Time limit in seconds, also of each call.

    Raises:
        TimeoutError: The numbers are still different.
        RuntimeError: A call to the worker failed.
    """
    expected = OwnersAndForks(num_owners, num_forks)
    deadline = time.monotonic() + timeout
    while (counted := _count_on(rank, deadline)) != expected:
        if time.monotonic() >= deadline:
            msg = (
                f"{worker_name(rank)} had ({counted.owners}, {counted.forks}) owners and forks after {timeout:g} s, "
                f"instead of ({num_owners}, {num_forks})"
            )
            raise TimeoutError(msg)
        time.sleep(_PAUSE)


def _count_on(rank: int, deadline: float) -> OwnersAndForks:
    timeout = max(deadline - time.monotonic(), 1.0)
    return OwnersAndForks(*rpc.rpc_sync(worker_name(rank), get_num_owners_and_forks, timeout=timeout))


def pending_references() -> tuple[int, int]:
    """The numbers of pending futures and users of this worker."""
    info = _rref_context_get_debug_info()
    return int(info["num_pending_futures"]), int(info["num_pending_users"])


def _do_nothing() -> None:
    """Do nothing; called to check whether a worker executes calls."""


T = TypeVar("T")

_PEERS_TIMEOUT = 60.0
_REFERENCES_TIMEOUT = 20.0


class RpcWorld:
    """An RPC world that several tests share, created by :func:`rpc_world`.

    Attributes:
        has_failed: Whether the last check found a failed test on some rank, or remaining references.
        is_incomplete: Whether some rank did not take part in the last check.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self.has_failed = False
        self.is_incomplete = False

    def check(self, *, peers_timeout: float = _PEERS_TIMEOUT, timeout: float = _REFERENCES_TIMEOUT) -> None:
        """Wait for all ranks at the end of a test, and check that it left no references to remote objects.

        All ranks must call this method after each test, even if the test has failed. If it has failed on any rank, the
        references are not checked, because its traceback may contain some.

        Args:
            peers_timeout: Time limit in seconds for all ranks to call this method.
            timeout: Time limit in seconds for references to be deleted.

        Raises:
            AssertionError: References are left (raised on all ranks; the message states their owners), the test has
                shut down RPC, or a rank did not call this method in time.
            RuntimeError: A call to another worker failed.
        """
        self.is_incomplete = True  # until all ranks have called this method
        # Delete references in cycles, such as that of the exception that pytest.raises returns with its own frame.
        gc.collect()
        # pytest sets this when a test fails, and deletes it before the next test.
        has_failed = hasattr(sys, "last_value")
        if not has_failed:  # when no rank has pending references, the owners have counted all references of the test
            wait_until(lambda: pending_references() == (0, 0), timeout)
        if any(self._gather(has_failed, peers_timeout + timeout)):
            self.has_failed, self.is_incomplete = True, False
            return
        wait_until(lambda: not _describe_references(), timeout)
        texts = self._gather(_describe_references(), peers_timeout + timeout)
        left = [f"{worker_name(rank)} {text}" for rank, text in enumerate(texts) if text]
        self.has_failed, self.is_incomplete = bool(left), False
        if left:
            msg = f"the test left references to remote objects after {timeout:g} s: {', '.join(left)}"
            raise AssertionError(msg)

    def _gather(self, value: T, timeout: float) -> list[T]:
        if not is_up():
            msg = "the test shut down the RPC world that it shares with other tests: use with_rpc for this test"
            raise AssertionError(msg)
        # torch uses this private function in its own shutdown. If workers are late, their values are missing.
        values = rpc.api._all_gather(value, timeout=timeout)  # noqa: SLF001 - see above
        names = [worker_name(rank) for rank in range(self._world_size)]
        if missing := [name for name in names if name not in values]:
            msg = f"{', '.join(missing)} did not reach the end of the test within {timeout:g} s"
            raise AssertionError(msg)
        return [values[name] for name in names]


@contextmanager
def rpc_world(
    *, agent: RpcAgent | None = None, rpc_timeout: float = _CALL_TIMEOUT, shutdown_timeout: float = _PEERS_TIMEOUT
) -> Iterator[RpcWorld]:
    """An RPC world that several tests share, for use in a fixture.

    The workers have the names of :func:`~allranks.testing.worker_name`. torch supports references to remote objects
    only in the first RPC world of a process, so the world must exist as long as the ranks: in a suite with
    ``isolation = "file"``, for example, create it in a fixture with module scope.

    Args:
        agent: The RPC agent; by default, :class:`~allranks.testing.TensorPipe`.
        rpc_timeout: Time limit of a call, in seconds.
        shutdown_timeout: Time limit in seconds for waiting for the peers at the end.

    Yields:
        The world; call its ``check`` method after each test.

    Raises:
        NoMeetingPointError: Neither an agent nor torchrun started the ranks.
        RuntimeError: The peers did not shut down in time, or references are left.
    """
    world = RpcWorld(RankEnvironment.read().world_size)
    options = WorldOptions(agent=agent, rpc_timeout=rpc_timeout, shutdown_timeout=shutdown_timeout)
    with world_around(None, options, f"kept-{number_of_world()}"):
        yield world
        if world.is_incomplete:
            shut_down_at_once()
        elif world.has_failed:
            ignore_rref_leaks()  # but shut down gracefully, because peers may still be in the check


def _describe_references() -> str:
    """A description of this worker's references; empty if there are none."""
    owners, forks = get_num_owners_and_forks()
    futures, users = pending_references()
    if not (owners or forks or futures or users):
        return ""
    pending = f", pending futures: {futures}, pending users: {users}" if futures or users else ""
    return f"(objects: {owners}, references: {forks}{pending})"
