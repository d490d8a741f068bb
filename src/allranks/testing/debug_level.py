"""How closely torch.distributed watches its collectives, for the time of a test."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, ParamSpec, TypeVar

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # public, but not exported for mypy
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)

from allranks.testing.variables import changed_variables

P = ParamSpec("P")
R = TypeVar("R")

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
