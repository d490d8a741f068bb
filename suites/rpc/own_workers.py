"""Workers that a test makes by itself, for worlds that ``rpc_world`` does not make."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import rpc


def is_up() -> bool:
    """Whether this process is a worker."""
    return bool(rpc.api._is_current_rpc_agent_set())  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way to ask


@contextmanager
def left_at_the_end() -> Iterator[None]:
    """Leave without waiting for peers if the test has not left by itself, as after a failure."""
    try:
        yield
    finally:
        if is_up():
            rpc.shutdown(graceful=False)


def join(name: str, rank: int, world_size: int | None = None, **arguments: Any) -> None:  # noqa: ANN401 - torch's own
    """Become a worker; of a dynamic world, if no world size is given."""
    with warnings.catch_warnings():
        # torch warns about itself: its TensorPipe agent compares device maps over a backend without a group.
        warnings.filterwarnings("ignore", "You are using a Backend ", UserWarning)
        rpc.init_rpc(name, rank=rank, world_size=world_size, **arguments)  # type: ignore[no-untyped-call]
