"""Temporary settings for tests: environment variables, debug level, blocking waits, and ``torch.compile``."""

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
    """Set and unset environment variables in a ``with`` block, and restore them at the end.

    Args:
        changes: The temporary value of each variable; None unsets the variable.
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

# If both are set, asynchronous error handling takes precedence, and waits do not block.
_BLOCKING = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": None}


def with_nccl_blocking_wait(test: Callable[P, R]) -> Callable[P, R]:
    """Run a test with ``TORCH_NCCL_BLOCKING_WAIT=1`` and without ``TORCH_NCCL_ASYNC_ERROR_HANDLING``.

    torch reads both variables when it creates an NCCL process group, so they only affect groups that the test itself
    creates. Both variables are restored after the test, even if it fails.
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
    """Set the debug level of torch.distributed in a ``with`` block, and restore it at the end.

    This changes both ``TORCH_DISTRIBUTED_DEBUG`` and the level that torch has already read. A process group checks its
    collectives only if the level is ``DETAIL`` when the group is created.

    Args:
        level: ``"OFF"``, ``"INFO"`` or ``"DETAIL"``.

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
    """Run a test once for each debug level of torch.distributed.

    If there is a default process group, a barrier follows each run. The test ends at the first level at which it fails;
    a note on the exception states this level.

    Args:
        levels: The levels, in order: ``"OFF"``, ``"INFO"`` or ``"DETAIL"``.

    Returns:
        A decorator. The decorated test returns its result for the last level.

    Raises:
        ValueError: There is no such level, or the list is empty.
    """
    for level in levels:
        _check(level)
    if not levels:
        msg = f"a test needs at least one debug level: choose from {', '.join(_LEVELS)}"
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
        msg = f"{level!r} is not a debug level of torch.distributed: choose from {', '.join(_LEVELS)}"
        raise ValueError(msg)


@contextmanager
def fresh_dynamo() -> Iterator[Mapping[str, Counter[str]]]:
    """Clear the caches and counters of ``torch.compile`` before and after a ``with`` block.

    In the block, compiler errors are raised, even if ``TORCHDYNAMO_SUPPRESS_ERRORS`` is set. At the end, changes to
    ``torch._dynamo.config`` and to the grad mode are undone, even after a failure. Caches on disk, such as Inductor's,
    are not cleared.

    Yields:
        Dynamo's counters, such as ``counters["stats"]["unique_graphs"]`` and ``counters["graph_break"]``.
    """
    # Imported here because it takes seconds, and most suites do not compile.
    config: Any = importlib.import_module("torch._dynamo.config")
    counters = importlib.import_module("torch._dynamo.utils").counters
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        stack.callback(_restore_config, config, config.get_config_copy())
        stack.callback(counters.clear)
        stack.callback(torch.compiler.reset)
        counters.clear()
        torch.compiler.reset()
        config.suppress_errors = False
        yield counters


def _restore_config(config: Any, before: Mapping[str, object]) -> None:  # noqa: ANN401 - the module torch._dynamo.config
    """Restore only the settings that have changed: setting deprecated ones would cause warnings."""
    now = config.get_config_copy()
    config.load_config({name: value for name, value in before.items() if now[name] != value})
