"""Restores what a test of a kept gang changed, unless a wider fixture had set it.

Of each part of the state: what reads it, and the one assignment that restores it. Where no single assignment restores a
part with certainty, the rank is replaced if a test has changed it. Some of these parts are restored as far as possible
all the same: the rank still has to tear down, and to leave.
"""

import builtins
import faulthandler
import functools
import gc
import io
import locale
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
from _signal import getsignal as _handler_of  # type: ignore[import-not-found]
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import FileLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType
from typing import Any, Final

import pytest
import torch
from torch import distributed
from torch.utils import _device as _device_module

from allranks.agent.stacks import is_library, is_standard_library

GROUP: Final = "the default process group"
"""A rank that has left it cannot rejoin alone."""

ENVIRON: Final = os.environ
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
    """The hooks; one by which a default group puts its rank before messages is as Python's own: no test sets that."""
    is_of_a_group = getattr(sys.excepthook, "__module__", "").startswith("torch.distributed.")
    return sys.__excepthook__ if is_of_a_group else sys.excepthook, threading.excepthook, sys.unraisablehook


def _set_hooks(hooks: tuple[Any, Any, Any]) -> None:
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


def _set_collector(state: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if state[0] else gc.disable)()
    gc.set_threshold(*state[1])


def loggers() -> dict[str, tuple[Any, ...]]:
    """By name, the state of the root logger and of each logger that is not as a new one."""
    # pytest sets some for now: on the root logger, and on each logger that does not propagate.
    pytests = [each for each in logging.root.handlers if type(each).__module__ == "_pytest.logging"]
    found = {
        name: _logger_state(logger, pytests)
        for name, logger in logging.root.manager.loggerDict.copy().items()
        if isinstance(logger, logging.Logger)  # there are placeholders, too
        and (logger.level or logger.handlers or logger.filters or logger.disabled or not logger.propagate)
    }
    found[logging.root.name] = _logger_state(logging.root, pytests)
    return found


def _logger_state(logger: logging.Logger, pytests: list[logging.Handler]) -> tuple[Any, ...]:
    handlers = [each for each in logger.handlers if each not in pytests]
    return logger, logger.level, logger.propagate, logger.disabled, handlers, [*logger.filters]


def _set_environ(environ: Any) -> None:  # noqa: ANN401 - of a class without a public name
    os.environ = environ  # noqa: B003 - its contents are restored one by one


_dump_later, _cancel_dump = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later


@dataclass
class _Watchdog:
    """Whether ``faulthandler``'s watchdog is set: ``faulthandler`` itself does not report that."""

    is_set: bool = False


_watchdog: Final = _Watchdog()


def watch_the_watchdog() -> None:
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


_MODULES: Final = sys.modules
_KNOWN: Final[dict[str, Any]] = {}
"""The modules of the base state."""


_FINDERS: Final[list[tuple[list[Any], list[Any]]]] = []
"""The lists of what finds modules, each with its content in the base state."""


def note_imports() -> None:
    """Make what is imported now part of the base state."""
    _KNOWN.clear()
    _KNOWN.update(_MODULES)
    _FINDERS[:] = [(finders, finders.copy()) for finders in (sys.meta_path, sys.path_hooks)]


def _imports() -> tuple[int, bool, bool]:
    """Whether known modules and what found them are still there, under their names: an import may add some."""
    # Their order first, at a fifth of the cost.
    are_own = list(_MODULES.values())[: len(_KNOWN)] == list(_KNOWN.values()) or _KNOWN.items() <= _MODULES.items()
    is_whole = all(each in finders for finders, known in _FINDERS for each in known)
    return id(sys.modules), are_own, is_whole


def _set_imports(_: object) -> None:
    sys.modules = _MODULES
    _MODULES.update(_KNOWN)
    for finders, known in _FINDERS:
        finders[:0] = [each for each in known if each not in finders]
    sys.path_importer_cache.clear()


def _names_of(place: Any, but: str = "") -> tuple[Callable[[], Any], Callable[[Any], object]]:  # noqa: ANN401 - any object
    """The reader and the writer of its names but one; an import may add some."""
    names = tuple(name for name in vars(place) if name != but)

    def write(values: list[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            if vars(place).get(name) is not value:
                setattr(place, name, value)

    return lambda: [*map(vars(place).get, names)], write


def _streams() -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return streams, tuple(isinstance(each, io.TextIOWrapper) and each.closed for each in streams)


def _set_streams(state: tuple[tuple[Any, ...], tuple[bool, ...]]) -> None:
    (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__), _ = state  # type: ignore[misc]


def _descriptors() -> list[tuple[int, int] | None]:
    """The files of the standard descriptors; None for one that is closed."""
    found: list[tuple[int, int] | None] = []
    for number in range(3):
        try:
            status = os.fstat(number)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return found


def _threads() -> list[int | None]:
    """The threads that run code of the suite, or work for it: they may call what reaches the next test."""
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    frames = sys._current_frames() if others else {}  # noqa: SLF001 - documented, for debuggers
    targets = ((each, getattr(each, "_target", None) or type(each).run) for each in others)
    codes = ((each, getattr(target, "__code__", None)) for each, target in targets)
    files = ((each.ident, code.co_filename) for each, code in codes if code)
    return [ident for ident, file in files if _is_of_suite(file, frames.get(ident or 0))]


def _is_of_suite(file: str, frame: FrameType | None) -> bool:
    """Whether a thread whose code begins in this file is the suite's; libraries keep threads for good.

    A thread of the standard library's, such as one of a pool, is the suite's while it works for others.
    """
    if not is_standard_library(file):
        return "-packages/" not in file and not is_library(file)
    while frame is not None and is_standard_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


_AUTOCASTS: Final = ("cpu", "cuda")
_FLAGS: Final = ("cudnn_benchmark", "cudnn_deterministic", "cudnn_enabled", "mkldnn_enabled")
"""Of torch's backends."""


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in _AUTOCASTS]


def _set_autocast(states: list[tuple[bool, torch.dtype]]) -> None:
    for device, (is_enabled, dtype) in zip(_AUTOCASTS, states, strict=True):
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, dtype)


def _flags() -> list[bool]:
    return [getattr(torch._C, f"_get_{name}")() for name in _FLAGS]  # noqa: SLF001 - at a tenth of the public ones' cost


def _set_flags(values: list[bool]) -> None:
    for name, value in zip(_FLAGS, values, strict=True):
        getattr(torch._C, f"_set_{name}")(value)  # noqa: SLF001 - see above


_top_hooks: Final[Callable[[bool], object]] = getattr(
    torch._C._autograd,  # noqa: SLF001 - no public name
    "_top_saved_tensors_default_hooks",
    lambda _: None,  # in torch 2.6
)


def _modes() -> tuple[object, ...]:
    """The modes that functions run in, apart from that of the default device."""
    functions = torch._C._len_torch_function_stack() - (_device() is not None)  # noqa: SLF001 - no public names
    return functions, torch._C._len_torch_dispatch_stack(), _top_hooks(False)  # noqa: SLF001


def _has_agent() -> bool:
    """Whether this process is a worker of RPC: it cannot become one again, nor leave in place of the test."""
    return bool(getattr(sys.modules.get("torch.distributed.rpc"), "_is_current_rpc_agent_set", bool)())


def _set_start_method(name: str) -> None:
    multiprocessing.set_start_method(name, force=True)


_numpy: Final[Any] = sys.modules.get("numpy")
"""torch imports it wherever it is installed."""


PARTS: Final[Mapping[str, tuple[Callable[[], Any], Callable[[Any], object] | None]]] = {
    "the working directory": (_folder, os.chdir),
    "the umask": (_umask, os.umask),
    "sys.path": (lambda: list(sys.path), lambda path: setattr(sys, "path", [*path])),
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
    "torch's inference mode": (torch.is_inference_mode_enabled, None),
    "limits of resources": (_limits, _set_limits),
    "faulthandler's watchdog": (lambda: _watchdog.is_set, _set_watchdog),
    "interval timers": (_timers, _set_timers),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "trace functions": (lambda: (sys.gettrace(), sys.getprofile()), _set_trace),
    "exception hooks": (_hooks, _set_hooks),
    "the garbage collector": (lambda: (gc.isenabled(), gc.get_threshold()), _set_collector),
    "the time-out of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "logging.disable": (lambda: logging.root.manager.disable, logging.disable),
    "imported modules": (_imports, _set_imports),
    "builtins": _names_of(builtins),
    # Without these, a test would check nothing.
    "names of pytest": _names_of(pytest),
    # The gang's end calls the other one, and shows what a test has done to it.
    "names of torch.distributed": _names_of(distributed, but="destroy_process_group"),
    "names of torch.testing": _names_of(torch.testing),
    "names of unittest.TestCase": _names_of(unittest.TestCase),
    "sys.argv": (lambda: sys.argv and list(sys.argv), lambda arguments: setattr(sys, "argv", [*arguments])),
    "threads of its own": (_threads, None),
    "the processors": (lambda: os.sched_getaffinity(0), lambda processors: os.sched_setaffinity(0, processors)),
    "the process group and session": (lambda: (os.getpgrp(), os.getsid(0)), None),
    "the user": (os.getresuid, lambda user: os.setresuid(*user)),
    "the folder of temporary files": (lambda: tempfile.tempdir, lambda folder: setattr(tempfile, "tempdir", folder)),
    "the limit of digits": (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "the start method of processes": (
        lambda: multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        _set_start_method,
    ),
    **({"numpy's errors": (_numpy.geterr, lambda ways: _numpy.seterr(**ways))} if _numpy else {}),
    "torch's autocast": (_autocast, _set_autocast),
    "torch's backends": (_flags, _set_flags),
    "torch's modes": (_modes, None),
    "the standard streams": (_streams, _set_streams),
    "the standard descriptors": (_descriptors, None),
    "os.environ": (lambda: os.environ, _set_environ),
    "torch's RPC agent": (_has_agent, None),
    GROUP: (lambda: distributed.group.WORLD, None),
}
"""What reads each part, and what restores it; None if nothing can."""

UNCERTAIN: Final = frozenset(
    {"imported modules", "builtins", "the standard streams", *(name for name in PARTS if name.startswith("names of "))}
)
"""The parts that several assignments restore as far as possible: only a new process is sure to have them."""


# Unlike signal.getsignal, it creates no enumeration members, which take nine tenths of the time.


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
