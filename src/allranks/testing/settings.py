"""Settings for the time of a test: environment variables, debug level, blocking waits, Dynamo."""

import functools
import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # public, but not exported for mypy
    get_debug_level,
    set_debug_level,
    set_debug_level_from_env,
)


@contextmanager
def changed_variables(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set and unset environment variables, and always restore each afterwards.

    Args:
        changes: The temporary value of each variable; None unsets it.
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

# If both are set, asynchronous error handling wins, and nothing would block.
_BLOCKING = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": None}


def with_nccl_blocking_wait(test: Callable[P, R]) -> Callable[P, R]:
    """Run a test with ``TORCH_NCCL_BLOCKING_WAIT=1`` and without ``TORCH_NCCL_ASYNC_ERROR_HANDLING``.

    NCCL reads both when a process group is created, so only groups that the test itself creates block. Both variables
    are restored, even if the test fails.
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
    """Set the debug level of torch.distributed, and restore the variable and torch's own level afterwards.

    Whether a process group checks its collectives (``DETAIL``) depends on the level at its creation.

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

    If there is a default process group, all ranks wait for each other after each level. The first level under which the
    test fails ends it, and is named in a note on the error.

    Args:
        levels: The levels, in order.

    Returns:
        A decorator; the decorated test returns its result under the last level.

    Raises:
        ValueError: A level does not exist, or the list is empty.
    """
    for level in levels:
        _check(level)
    if not levels:
        msg = f"a test needs at least one debug level: name some of {', '.join(_LEVELS)}"
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
        msg = f"{level!r} is not a debug level of torch.distributed: name one of {', '.join(_LEVELS)}"
        raise ValueError(msg)


@contextmanager
def fresh_dynamo() -> Iterator[Mapping[str, Counter[str]]]:
    """Compile from scratch: Dynamo's caches and counters are emptied before and afterwards, also after a failure.

    A compiler's error fails the test, even if TORCHDYNAMO_SUPPRESS_ERRORS would run it uncompiled. Changes of
    ``torch._dynamo.config`` and of the grad mode are undone. Files of compilers, such as Inductor's, stay.

    Yields:
        Dynamo's counters: ``counters["stats"]["unique_graphs"]``, ``counters["graph_break"]``.
    """
    # Now, as it takes seconds to import, and most suites compile nothing.
    config: Any = importlib.import_module("torch._dynamo.config")
    counters = importlib.import_module("torch._dynamo.utils").counters
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        stack.callback(_put_back, config, config.get_config_copy())
        stack.callback(counters.clear)
        stack.callback(torch.compiler.reset)
        counters.clear()
        torch.compiler.reset()
        config.suppress_errors = False
        yield counters


def _put_back(config: Any, before: Mapping[str, object]) -> None:  # noqa: ANN401 - the module torch._dynamo.config
    """Set again what has changed; to set all would warn of old names."""
    now = config.get_config_copy()
    config.load_config({name: value for name, value in before.items() if now[name] != value})
