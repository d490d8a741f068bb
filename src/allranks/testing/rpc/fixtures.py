"""Mixins for test cases that start their own ranks: which RPC agent their tests run over."""

from collections.abc import Mapping, Sequence
from typing import Any

from allranks.testing.rpc.agents import (
    DELAYED_MESSAGES,
    RETRYABLE_MESSAGES,
    FaultyTensorPipe,
    RpcAgent,
    TensorPipe,
    get_shutdown_error_regex,
    get_timeout_error_regex,
)

_CALL_TIMEOUT = 60.0


class TensorPipeRpcAgentTestFixture:
    """TensorPipe, and four ranks that meet in the file of the test case.

    To be mixed into a class with ``rank`` and ``file_name``; :func:`~allranks.testing.with_rpc` reads the rest.
    """

    file_name: str

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return 4

    @property
    def init_method(self) -> str:
        """Where the workers meet."""
        return f"file://{self.file_name}"

    @property
    def rpc_agent(self) -> RpcAgent:
        """What the tests run over."""
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
        """Say which messages go wrong; this agent loses none."""

    def get_shutdown_error_regex(self) -> str:
        """What a call can fail with when its callee shuts down."""
        return get_shutdown_error_regex(self.rpc_backend)

    def get_timeout_error_regex(self) -> str:
        """What a call that took too long fails with."""
        return get_timeout_error_regex()


class FaultyRpcAgentTestFixture(TensorPipeRpcAgentTestFixture):
    """The faulty agent; each test says by :func:`~allranks.testing.with_rpc` which messages go wrong."""

    messages_to_fail: Sequence[str] = RETRYABLE_MESSAGES
    messages_to_delay: Mapping[str, float] = DELAYED_MESSAGES

    @property
    def rpc_agent(self) -> RpcAgent:
        """What the tests run over."""
        return FaultyTensorPipe(messages_to_fail=self.messages_to_fail, messages_to_delay=self.messages_to_delay)

    def setup_fault_injection(
        self, faulty_messages: Sequence[str] | None, messages_to_delay: Mapping[str, float] | None
    ) -> None:
        """Say which messages go wrong; None leaves them as they were."""
        if faulty_messages is not None:
            self.messages_to_fail = faulty_messages
        if messages_to_delay is not None:
            self.messages_to_delay = messages_to_delay
