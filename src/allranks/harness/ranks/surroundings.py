"""Restores what a test of a kept gang changed, unless a wider fixture had set it."""

import faulthandler
import functools
import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time

# Unlike signal.getsignal, it creates no enumeration members, which take nine tenths of the time.
from _signal import getsignal as _handler_of  # type: ignore[import-not-found]
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import seed as _seed_python
from typing import Any, Final

import torch
from torch import distributed
from torch.utils import _device as _device_module

_State = dict[str, Any]
"""Values by name: ``the working directory``, ``variable HOME``, ``handler of SIGINT``; None if unset."""

_GROUP: Final = "the default process group"
"""Cannot be restored: a rank that has left it cannot rejoin alone."""

_HOOKS: Final = "exception hooks"

_VARIABLE: Final = "variable "
_HANDLER: Final = "handler of "
_OURS: Final = frozenset({"PYTEST_CURRENT_TEST", "ALLRANKS_SEED"})
_OURS_ENCODED: Final = frozenset(map(os.fsencode, _OURS))
_OF_TORCH: Final = ("TORCHINDUCTOR_", "TRITON_", "KINETO_")
"""Prefixes of variables that torch sets when parts of it are imported."""

_ENVIRON: Final = os.environ
"""Kept, because a test may replace ``os.environ`` by another mapping."""

_LIMITS: Final = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_STACK,
)
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_NAMED: Final = frozenset(signal.Signals)


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - this returns a str
    except OSError:
        return None  # the folder has been removed


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _device() -> torch.device | None:
    """The default device; None unless one was set, because then a mode would slow down every function."""
    return _device_module.CURRENT_DEVICE


def _set_path(path: list[str]) -> None:
    sys.path[:] = path


def _limits() -> tuple[tuple[int, int], ...]:
    return tuple(map(resource.getrlimit, _LIMITS))


def _set_limits(limits: tuple[tuple[int, int], ...]) -> None:
    for number, limit in zip(_LIMITS, limits, strict=True):
        resource.setrlimit(number, limit)


def _timers() -> tuple[bool, ...]:
    """Whether each timer is set; how much of its time was left is not known afterwards."""
    return tuple(any(signal.getitimer(number)) for number in _TIMERS)


def _set_timers(are_set: tuple[bool, ...]) -> None:
    for number, is_set in zip(_TIMERS, are_set, strict=True):
        if not is_set:
            signal.setitimer(number, 0.0)


def _set_trace(functions: tuple[Any, Any]) -> None:
    sys.settrace(functions[0])
    sys.setprofile(functions[1])


def _hooks() -> tuple[Any, ...]:
    return sys.excepthook, threading.excepthook, sys.unraisablehook


def _is_of_a_group(before: tuple[Any, ...]) -> bool:
    """Whether only a default group, which puts its rank before messages, has set a hook: no test meant to."""
    return _hooks()[1:] == before[1:] and getattr(sys.excepthook, "__module__", "").startswith("torch.distributed.")


def _set_hooks(hooks: tuple[Any, Any, Any]) -> None:
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


def _set_collector(state: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if state[0] else gc.disable)()
    gc.set_threshold(*state[1])


def _logging() -> tuple[int, int]:
    return logging.root.manager.disable, logging.root.level


def _set_logging(levels: tuple[int, int]) -> None:
    logging.disable(levels[0])
    logging.root.setLevel(levels[1])


def _set_environ(environ: Any) -> None:  # noqa: ANN401 - of a class without a public name
    os.environ = environ  # noqa: B003 - its contents are restored one by one


_dump_later, _cancel_dump = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later


@dataclass
class _Watchdog:
    """Whether ``faulthandler``'s watchdog is set: ``faulthandler`` itself does not report that."""

    is_set: bool = False


_watchdog: Final = _Watchdog()


def _watch_the_watchdog() -> None:
    """Track ``faulthandler``'s watchdog: one that a test leaves set would end the rank in another test."""

    @functools.wraps(_dump_later)
    def dump_later(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - faulthandler's
        _dump_later(*arguments, **options)
        _watchdog.is_set = True

    @functools.wraps(_cancel_dump)
    def cancel() -> None:
        _cancel_dump()
        _watchdog.is_set = False

    faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later = dump_later, cancel


def _set_watchdog(is_set: bool) -> None:
    if not is_set:
        faulthandler.cancel_dump_traceback_later()


def _refuse(_: object) -> None:
    msg = "nothing can put this back"
    raise RuntimeError(msg)


_PARTS: Final[Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]]] = {
    "the working directory": (_folder, os.chdir),
    "the umask": (_umask, os.umask),
    "sys.path": (lambda: list(sys.path), _set_path),
    "the locale": (lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    "blocked signals": (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda mask: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
    ),
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (_device, torch.set_default_device),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's deterministic algorithms": (
        _deterministic,
        lambda on: torch.use_deterministic_algorithms(on[0], warn_only=on[1]),
    ),
    "torch's grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's anomaly detection": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "torch's matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's inference mode": (torch.is_inference_mode_enabled, _refuse),
    "limits of resources": (_limits, _set_limits),
    "faulthandler's watchdog": (lambda: _watchdog.is_set, _set_watchdog),
    "interval timers": (_timers, _set_timers),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "trace functions": (lambda: (sys.gettrace(), sys.getprofile()), _set_trace),
    _HOOKS: (_hooks, _set_hooks),
    "the garbage collector": (lambda: (gc.isenabled(), gc.get_threshold()), _set_collector),
    "the time-out of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "levels of logging": (_logging, _set_logging),
    "os.environ": (lambda: os.environ, _set_environ),
    _GROUP: (lambda: distributed.group.WORLD, lambda _: None),
}
"""The reader and the writer of each part."""

_SIGNALS: Final = tuple(sorted(set(map(int, signal.valid_signals())) - {signal.SIGKILL, signal.SIGSTOP}))


class InitialState:
    """The process state that each of a gang's tests starts with."""

    def __init__(self) -> None:
        _watch_the_watchdog()
        self._base = _read()
        # A glance at the base state; None if the base has changed since.
        self._glance: list[Any] | None = _glance()
        # Values that wider fixtures have replaced, and may restore.
        self._before: dict[str, list[Any]] = {}

    @contextmanager
    def widening(self) -> Generator[None, None, None]:
        """Set up a fixture of wider scope than a test: its changes become part of the base."""
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

    def put_back(self) -> tuple[list[str], bool]:
        """Restore what a test has changed; returns the names of it, and whether all could be restored."""
        if _glance() == self._glance:
            return [], True
        changed: list[str] = []
        is_whole = True
        for name in _differences(self._base, _read()):
            if name == _GROUP:
                is_whole = False
                continue
            if not (name == _HOOKS and _is_of_a_group(self._base[name])):
                changed.append(name)
            try:
                _write(name, self._base.get(name))
            except (OSError, ValueError, TypeError, RuntimeError, locale.Error):
                is_whole = False
        self._glance = _glance()
        return changed, is_whole


def _read() -> _State:
    state: _State = {name: read() for name, (read, _) in _PARTS.items()}
    variables = ((name, value) for name, value in _ENVIRON.items() if not name.startswith(_OF_TORCH))
    state.update((f"{_VARIABLE}{name}", value) for name, value in variables if name not in _OURS)
    for number in _SIGNALS:
        state[f"{_HANDLER}{signal.Signals(number).name if number in _NAMED else number}"] = signal.getsignal(number)
    return state


def _glance() -> list[Any]:
    """A cheap form of the state, at a fifth of the cost: equal if nothing has changed."""
    variables = {name: value for name, value in _ENVIRON._data.items() if name not in _OURS_ENCODED}  # type: ignore[attr-defined]  # noqa: SLF001
    return [variables, *map(_handler_of, _SIGNALS), *(read() for read, _ in _PARTS.values())]


def _differences(one: _State, other: _State) -> Iterator[str]:
    return (name for name in sorted({**one, **other}) if one.get(name) != other.get(name))


def _write(name: str, value: Any) -> None:  # noqa: ANN401 - of any part
    if name.startswith(_VARIABLE):
        variable = name.removeprefix(_VARIABLE)
        if value is None:
            _ENVIRON.pop(variable, None)
        else:
            _ENVIRON[variable] = value
        if variable == "TZ":
            time.tzset()
    elif name.startswith(_HANDLER):
        word = name.removeprefix(_HANDLER)
        signal.signal(int(word) if word.isdigit() else signal.Signals[word], value)
    else:
        _PARTS[name][1](value)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy (if it is loaded) and torch.

    Args:
        seed: At most 32 bits, NumPy's limit.
    """
    _seed_python(seed)
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        # torch.manual_seed takes 0.7 ms: each kind of accelerator defers its seeding, and formats a stack for that.
        torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
