"""Settings for the time of a test: environment variables, debug level, blocking waits."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, ParamSpec, TypeVar

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # public, but not exported for mypy
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)


@contextmanager
def changed_variables(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set and unset some environment variables, and put each back as it was, whatever happens in between.

    Args:
        changes: The value that each variable has meanwhile; None for one that is not set.
    """
    before = {name: os.environ.get(name) for name in changes}
    _apply(changes)
    try:
        yield
    finally:
        _apply(before)


def _apply(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


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


DebugLevelName = Literal["OFF", "INFO", "DETAIL"]
"""The values of ``TORCH_DISTRIBUTED_DEBUG``."""

_LEVELS = ("OFF", "INFO", "DETAIL")


@contextmanager
def dist_debug_level(level: DebugLevelName) -> Iterator[None]:
    """Give torch.distributed a debug level, and put the variable and torch's own level back as they were.

    A process group checks its collectives (``DETAIL``) as the level was when the group was made.

    Args:
        level: The level.

    Raises:
        ValueError: There is no such level.
    """
    _check(level)
    before = get_debug_level()
    with changed_variables({"TORCH_DISTRIBUTED_DEBUG": level}):
        set_debug_level_from_env()
        try:
            yield
        finally:
            set_debug_level(before)


def with_dist_debug_levels(levels: Sequence[DebugLevelName]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run a test once under each debug level.

    All ranks wait for each other after each level where there is a default process group. The first level under which
    the test fails ends it, and is named in a note on the error.

    Args:
        levels: The levels, in their order.

    Returns:
        A decorator; the decorated test returns what it returned under the last level.

    Raises:
        ValueError: A level does not exist, or there is none.
    """
    for level in levels:
        _check(level)
    if not levels:
        msg = f"a test under no debug level would not run at all: name some of {', '.join(_LEVELS)}"
        raise ValueError(msg)

    def decorate(test: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(test)
        def under_each(*args: P.args, **kwargs: P.kwargs) -> R:
            *before, last = levels
            for level in before:
                _run_under(level, lambda: test(*args, **kwargs))
            return _run_under(last, lambda: test(*args, **kwargs))

        return under_each

    return decorate


def _run_under(level: DebugLevelName, run: Callable[[], R]) -> R:
    with dist_debug_level(level):
        try:
            returned = run()
        except BaseException as error:
            error.add_note(f"under TORCH_DISTRIBUTED_DEBUG={level}")
            raise
        if dist.is_initialized():
            dist.barrier()
    return returned


def _check(level: str) -> None:
    if level not in _LEVELS:
        msg = f"{level!r} is no debug level of torch.distributed: name one of {', '.join(_LEVELS)}"
        raise ValueError(msg)
