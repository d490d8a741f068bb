"""The RPC agents that a test can run over, their transports, and mixins that choose one."""

import functools
import importlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from torch.distributed import rpc

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
