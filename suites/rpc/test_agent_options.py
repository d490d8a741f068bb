"""The options of an agent: the world of this file was made with them alone, without a name of the backend."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import rpc

from allranks.testing import RpcWorld, TensorPipe, rpc_world

THREADS = 27
SECONDS = 100.0


@dataclass(frozen=True, kw_only=True)
class UnnamedTensorPipe(TensorPipe):
    """TensorPipe by its options: torch has to infer the backend."""

    @property
    def backend(self) -> Any:  # noqa: ANN401 - torch makes its enumeration at run time
        """No name."""
        return None


@pytest.fixture(scope="module")
def world_of_file() -> Iterator[RpcWorld]:
    """A world with other numbers than those of torch."""
    with rpc_world(agent=UnnamedTensorPipe(worker_threads=THREADS), rpc_timeout=SECONDS) as world:
        yield world


def agent() -> Any:  # noqa: ANN401 - torch has no type for it
    """This worker's agent."""
    return rpc.api._get_current_rpc_agent()  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way to ask


def test_backend_is_inferred_from_the_type_of_the_options() -> None:
    """TensorPipe's options make a TensorPipe agent."""
    assert isinstance(agent(), rpc.TensorPipeAgent)  # type: ignore[attr-defined]


def test_number_of_worker_threads() -> None:
    """The agent has as many threads for calls."""
    assert int(agent().get_debug_info()["agent.thread_pool_size"]) == THREADS


def test_default_time_limit_of_calls() -> None:
    """Calls without a limit of their own have that of the options."""
    assert rpc.get_rpc_timeout() == SECONDS  # type: ignore[attr-defined]


def test_time_limit_that_is_no_number_is_refused() -> None:
    """Seconds, not a timedelta."""
    wrong: Any = timedelta(seconds=1)
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        rpc.TensorPipeRpcBackendOptions(rpc_timeout=wrong)
