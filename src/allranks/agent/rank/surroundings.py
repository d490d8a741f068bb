"""Restores what a test of a kept gang changed, unless a wider fixture had set it."""

import locale
import os
import signal
import sys
import threading
import time

# Unlike signal.getsignal, it creates no enumeration members, which take nine tenths of the time.
from _signal import getsignal as _handler_of  # type: ignore[import-not-found]
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import FileLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, Final

from allranks.agent.rank.state_parts import (
    ENVIRON,
    PARTS,
    UNCERTAIN,
    loggers,
    note_imports,
    watch_the_watchdog,
)

_State = dict[str, Any]
"""Values by name, as ``variable HOME``, ``handler of SIGINT`` or ``logger a.b``; None if unset."""

_VARIABLE: Final = "variable "
_HANDLER: Final = "handler of "
_LOGGER: Final = "logger "
_OURS: Final = frozenset({"PYTEST_CURRENT_TEST", "ALLRANKS_SEED"})
_OURS_ENCODED: Final = frozenset(map(os.fsencode, _OURS))
_OF_TORCH: Final = ("TORCHINDUCTOR_", "TRITON_", "KINETO_")
"""Prefixes of variables that torch sets when parts of it are imported."""

_NAMED: Final = frozenset(signal.Signals)
_SIGNALS: Final = tuple(sorted(set(map(int, signal.valid_signals())) - {signal.SIGKILL, signal.SIGSTOP}))


class InitialState(MetaPathFinder):
    """The process state that each of a gang's tests starts with.

    As a finder, it keeps what a module changes when a test imports it: no later test runs the module again.
    """

    def __init__(self) -> None:
        watch_the_watchdog()
        self._is_importing = False
        sys.meta_path.insert(0, self)
        note_imports()
        self._base = _read()
        # A glance at the base state; None if the base has changed since.
        self._glance: list[Any] | None = _glance()
        # Values that wider fixtures have replaced, and may restore.
        self._before: dict[str, list[Any]] = {}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:  # noqa: ANN401 - importlib's
        """Find what the other finders do; nothing within another import, or in a thread, which has its own state."""
        if self._is_importing or threading.current_thread() is not threading.main_thread():
            return None
        self._is_importing = True
        try:
            finders = (each for each in sys.meta_path if hasattr(each, "find_spec"))
            others = (each for each in finders if not isinstance(each, InitialState))
            spec = next(filter(None, (each.find_spec(fullname, path, target) for each in others)), None)
        finally:
            self._is_importing = False
        if spec is not None and isinstance(spec.loader, FileLoader):  # pytest's own has several modules
            spec.loader.exec_module = self._importing()(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    @contextmanager
    def _importing(self) -> Generator[None, None, None]:
        self._is_importing = True
        try:
            with self._keeping():
                yield
        finally:
            self._is_importing = False

    @contextmanager
    def widening(self) -> Generator[None, None, None]:
        """Set up a fixture of wider scope than a test: its changes become part of the base."""
        with self._keeping():
            try:
                yield
            finally:
                note_imports()

    @contextmanager
    def _keeping(self) -> Generator[None, None, None]:
        before = _read()
        try:
            yield
        finally:
            now = _read()
            for name in _differences(before, now):
                self._before.setdefault(name, []).append(self._base.get(name))
                self._base[name] = now.get(name)
            self._glance = None

    def narrow(self) -> None:
        """Note the end of such a fixture: values that it has restored become part of the base."""
        now = _read()
        for name in _differences(self._base, now):
            if any(now.get(name) == before for before in self._before.get(name, ())):
                self._base[name] = now.get(name)
        self._glance = None

    def put_back(self) -> tuple[list[str], list[str]]:
        """Restore what a test has changed; returns the names of what is as before again, and of what is not."""
        if _glance() == self._glance:
            return [], []
        changed = list(_differences(self._base, _read()))
        for name in changed:
            with suppress(OSError, ValueError, TypeError, RuntimeError, locale.Error):
                _restore(name, self._base.get(name))
        differing = set(_differences(self._base, _read()))
        left = [name for name in changed if name in differing or name in UNCERTAIN]
        self._glance = _glance()
        return [name for name in changed if name not in left], left


def _read() -> _State:
    state: _State = {name: read() for name, (read, _) in PARTS.items()}
    variables = ((name, value) for name, value in ENVIRON.items() if not name.startswith(_OF_TORCH))
    state.update((f"{_VARIABLE}{name}", value) for name, value in variables if name not in _OURS)
    state.update((f"{_LOGGER}{name}", value) for name, value in loggers().items())
    for number in _SIGNALS:
        state[f"{_HANDLER}{signal.Signals(number).name if number in _NAMED else number}"] = signal.getsignal(number)
    return state


def _glance() -> list[Any]:
    """A cheap form of the state, at a fifth of the cost: equal if nothing has changed."""
    variables = {name: value for name, value in ENVIRON._data.items() if name not in _OURS_ENCODED}  # type: ignore[attr-defined]  # noqa: SLF001
    return [variables, loggers(), *map(_handler_of, _SIGNALS), *(read() for read, _ in PARTS.values())]


def _differences(one: _State, other: _State) -> Iterator[str]:
    return (name for name in sorted({**one, **other}) if one.get(name) != other.get(name))


def _restore(name: str, value: Any) -> None:  # noqa: ANN401 - of any part
    """Restore a part, as far as possible."""
    if name.startswith(_VARIABLE):
        variable = name.removeprefix(_VARIABLE)
        if value is None:
            ENVIRON.pop(variable, None)
        else:
            ENVIRON[variable] = value
        if variable == "TZ":
            time.tzset()
    elif name.startswith(_HANDLER):
        word = name.removeprefix(_HANDLER)
        signal.signal(int(word) if word.isdigit() else signal.Signals[word], value)
    elif name in PARTS and (restore := PARTS[name][1]) is not None:
        restore(value)
