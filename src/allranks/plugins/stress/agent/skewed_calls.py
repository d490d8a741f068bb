"""Delays calls of this rank for ``--skew``: collectives, messages, waits, stores and RPC.

It is a plugin of the session that ranks are forked from. Before the first test it wraps torch's methods, around the
wrappers that count calls. It keeps its own reference to `time.sleep`, which tests may replace.
"""

import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import distributed

from allranks.agent.rank.call_counter import COLLECTIVES, MESSAGES, wrap
from allranks.agent.rank.rank import INSTRUCTIONS
from allranks.plugins.stress.agent.skew import LateRank, NamedDelays, lateness, milliseconds
from allranks.protocol.repetitions import OFF

_SHORTEST_LOGGED = 0.001
"""Seconds: shorter delays are not logged."""

_STORE = ("set", "get", "add", "wait", "check", "compare_set", "delete_key", "append", "multi_get", "multi_set")

_GROUPS = ("init_process_group", "new_group", "destroy_process_group")
_RPC = ("init_rpc", "rpc_sync", "rpc_async", "remote", "shutdown")
_FUNCTIONS = {
    "torch.distributed": _GROUPS,
    "torch.distributed.distributed_c10d": _GROUPS,
    "torch.distributed.rpc": _RPC,
    "torch.distributed.rpc.api": _RPC,
}
"""Functions, by the modules that bind them."""

_NOT_USERS = (
    *(str(Path(module.__file__).parent) for module in (torch, pytest) if module.__file__),
    f"{os.sep}allranks{os.sep}agent",
    str(Path(__file__).parent),
    "contextlib.py",
    f"{os.sep}threading.py",
)
"""Parts of the paths of frames that do not belong to the user's code."""

_STARTED = "_allranks_started"
"""The attribute of a thread with the location of its start."""

_sleep = time.sleep


class SkewedCalls:
    """Delays the calls of a rank's tests."""

    def __init__(self) -> None:
        self._late: LateRank | NamedDelays | None = None
        self._left = 0.0
        self._calls: Iterator[int] = itertools.count()
        self._has_wrapped = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Delay the start of a test, and the calls in it."""
        rank, seed = os.environ.get("RANK", ""), os.environ.get("ALLRANKS_SEED", "")
        if rank.isdecimal() and seed.isdecimal():
            self._wrap_calls()
            skew = item.config.stash.get(INSTRUCTIONS, "") or OFF
            self._late, self._calls = lateness(skew, int(seed), int(rank)), itertools.count(1)
            if self._late is not None:
                self._left = self._late.most
                file, line, _ = item.location
                self._wait(self._late.delay(0)[0], "before the test", 0, f" at {Path(file).name}:{(line or 0) + 1}")
        try:
            return (yield)
        finally:
            self._late = None

    def _wrap_calls(self) -> None:
        if self._has_wrapped:
            return
        self._has_wrapped = True
        for method in (*COLLECTIVES, *MESSAGES):
            wrap(distributed.ProcessGroup, method, functools.partial(self._delayed_method, name=method))
        wrap(threading.Thread, "start", _record_start)
        wrap(distributed.Work, "wait", functools.partial(self._delayed_method, name="wait"))
        store = torch._C._distributed_c10d.Store  # noqa: SLF001
        for method in _STORE:
            wrap(store, method, functools.partial(self._delayed_method, name=f"store.{method}"))
        barriers: Any = sys.modules.get("allranks.testing.shared_files")
        if barriers is not None:
            wrap(barriers.FileBarrier, "__call__", functools.partial(self._delayed_method, name="file_barrier"))
        for module, names in _FUNCTIONS.items():
            owner: Any = sys.modules.get(module)
            for name in names:
                if (function := getattr(owner, name, None)) is not None:
                    named = f"rpc.{name}" if names is _RPC else name
                    setattr(owner, name, self._delayed_function(function, name=named))

    def _delayed_method(self, original: Callable[..., Any], *, name: str) -> Any:  # noqa: ANN401 - a function
        def call(called: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            with self._delays(name):
                return original(called, *arguments, **options)

        return call

    def _delayed_function(self, original: Callable[..., Any], *, name: str) -> Any:  # noqa: ANN401 - a function
        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            with self._delays(name):
                return original(*arguments, **options)

        return call

    @contextmanager
    def _delays(self, name: str) -> Iterator[None]:
        """Wait before and after a call, but not after one that fails."""
        __tracebackhide__ = True
        if (late := self._late) is None:
            yield
            return
        number = next(self._calls)
        before, after = late.delay(number)
        self._wait(before, f"before {name}", number)
        yield
        self._wait(after, f"after {name}", number)

    def _wait(self, seconds: float, what: str, number: int, where: str = "") -> None:
        seconds = min(seconds, self._left)
        if seconds <= 0:
            return
        self._left -= seconds
        if seconds >= _SHORTEST_LOGGED:
            where = where or _location(sys._getframe(1))  # noqa: SLF001 - inspect.stack() reads source files
            sys.stderr.write(f"--skew: {milliseconds(seconds)} ms {what} (call {number}{where})\n")
        _sleep(seconds)


def _record_start(original: Callable[..., Any]) -> Callable[..., Any]:
    """Start a thread, and store where: its own stack may have only functions of torch."""

    def start(thread: threading.Thread) -> None:
        if found := _location(sys._getframe(1)):  # noqa: SLF001 - inspect.stack() reads source files
            vars(thread)[_STARTED] = f" in a thread from{found.removeprefix(' at')}"
        original(thread)

    return start


def _location(frame: FrameType | None) -> str:
    """The innermost line of the user's code, or the one that started this thread, as text; empty if there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in _NOT_USERS) and not file.startswith("<"):
            return f" at {Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return str(vars(threading.current_thread()).get(_STARTED, ""))
