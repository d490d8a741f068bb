"""NCCL collectives that block the thread that waits for them, and raise there."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from allranks.testing.variables import changed_variables

P = ParamSpec("P")
R = TypeVar("R")

# Where both are set, asynchronous error handling wins, and nothing would block.
_BLOCKING = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": None}


def with_nccl_blocking_wait(test: Callable[P, R]) -> Callable[P, R]:
    """Run a test with ``TORCH_NCCL_BLOCKING_WAIT=1`` and without ``TORCH_NCCL_ASYNC_ERROR_HANDLING``.

    NCCL reads both when a process group is made, so only groups that the test itself makes block. Both variables are
    put back as they were, also when the test fails.
    """

    @functools.wraps(test)
    def blocking(*args: P.args, **kwargs: P.kwargs) -> R:
        with changed_variables(_BLOCKING):
            return test(*args, **kwargs)

    return blocking
