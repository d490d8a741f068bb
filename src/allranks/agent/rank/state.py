"""Restores the process state that a test of a kept gang changed, unless a fixture of wider scope set it.

For each part of the state, there is a function that reads it and one that restores it. If a part cannot be restored
with certainty by one assignment, the rank is replaced after a test has changed it. Some of these parts are nevertheless
restored as far as possible, because the rank still has to tear down and exit.
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
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
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
"""A rank that has left it cannot rejoin by itself."""

ENVIRON: Final = os.environ
"""Bound now, because a test may replace ``os.environ`` by another mapping."""

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
    """The default device; None if unset. Setting one enables a mode that slows down all functions."""
    return _device_module.CURRENT_DEVICE


def _limits() -> tuple[tuple[int, int], ...]:
    return tuple(map(resource.getrlimit, _LIMITS))


def _set_limits(limits: tuple[tuple[int, int], ...]) -> None:
    for number, limit in zip(_LIMITS, limits, strict=True):
        resource.setrlimit(number, limit)


def _timers() -> tuple[bool, ...]:
    """Whether each timer is set. Its remaining time cannot be restored."""
    return tuple(any(signal.getitimer(number)) for number in _TIMERS)


def _set_timers(are_set: tuple[bool, ...]) -> None:
    for number, is_set in zip(_TIMERS, are_set, strict=True):
        if not is_set:
            signal.setitimer(number, 0.0)


def _set_trace(functions: tuple[Any, Any]) -> None:
    sys.settrace(functions[0])
    sys.setprofile(functions[1])


def _hooks() -> tuple[Any, ...]:
    """The hooks; that of a default process group, which adds the rank to messages, counts as Python's own."""
    is_of_torch = getattr(sys.excepthook, "__module__", "").startswith("torch.distributed.")
    return sys.__excepthook__ if is_of_torch else sys.excepthook, threading.excepthook, sys.unraisablehook


def _set_hooks(hooks: tuple[Any, Any, Any]) -> None:
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


def _set_collector(state: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if state[0] else gc.disable)()
    gc.set_threshold(*state[1])


def loggers() -> dict[str, tuple[Any, ...]]:
    """The state of the root logger, and of each logger that differs from a new one, by name."""
    # pytest temporarily adds handlers to the root logger and to all loggers that do not propagate.
    of_pytest = [handler for handler in logging.root.handlers if type(handler).__module__ == "_pytest.logging"]
    found = {
        name: _logger_state(logger, of_pytest)
        for name, logger in logging.root.manager.loggerDict.copy().items()
        if isinstance(logger, logging.Logger)  # the dictionary also has placeholders
        and (logger.level or logger.handlers or logger.filters or logger.disabled or not logger.propagate)
    }
    found[logging.root.name] = _logger_state(logging.root, of_pytest)
    return found


def _logger_state(logger: logging.Logger, of_pytest: list[logging.Handler]) -> tuple[Any, ...]:
    handlers = [handler for handler in logger.handlers if handler not in of_pytest]
    return logger, logger.level, logger.propagate, logger.disabled, handlers, [*logger.filters]


def _set_environ(environ: Any) -> None:  # noqa: ANN401 - of a class without a public name
    os.environ = environ  # noqa: B003 - its contents are restored one by one


_dump_later, _cancel_dump = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later


@dataclass
class _Watchdog:
    """Whether ``faulthandler``'s watchdog is set, which ``faulthandler`` does not report."""

    is_set: bool = False


_watchdog: Final = _Watchdog()


def track_watchdog() -> None:
    """Track ``faulthandler``'s watchdog, which could end the rank in another test if a test leaves it set."""

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
"""The modules in the base state."""


_FINDERS: Final[list[tuple[list[Any], list[Any]]]] = []
"""The lists of import finders and path hooks, each with its content in the base state."""


def note_imports() -> None:
    """Add the imported modules to the base state."""
    _KNOWN.clear()
    _KNOWN.update(_MODULES)
    _FINDERS[:] = [(finders, finders.copy()) for finders in (sys.meta_path, sys.path_hooks)]


def _imports() -> tuple[int, bool, bool]:
    """Whether the modules and finders of the base state are still there; others may have been added."""
    # The comparison in order comes first, because it takes a fifth of the time.
    has_modules = list(_MODULES.values())[: len(_KNOWN)] == list(_KNOWN.values()) or _KNOWN.items() <= _MODULES.items()
    has_finders = all(finder in finders for finders, known in _FINDERS for finder in known)
    return id(sys.modules), has_modules, has_finders


def _set_imports(_: object) -> None:
    sys.modules = _MODULES
    _MODULES.update(_KNOWN)
    for finders, known in _FINDERS:
        finders[:0] = [finder for finder in known if finder not in finders]
    sys.path_importer_cache.clear()


def _names_of(owner: Any, but: str = "") -> tuple[Callable[[], Any], Callable[[Any], object]]:  # noqa: ANN401 - any object
    """Functions that read and restore the attributes of a module or class, except for ``but`` and for new ones."""
    names = tuple(name for name in vars(owner) if name != but)

    def write(values: list[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)

    return lambda: [*map(vars(owner).get, names)], write


def _streams() -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return streams, tuple(isinstance(stream, io.TextIOWrapper) and stream.closed for stream in streams)


def _set_streams(state: tuple[tuple[Any, ...], tuple[bool, ...]]) -> None:
    (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__), _ = state  # type: ignore[misc]


def _descriptors() -> list[tuple[int, int] | None]:
    """The files of the standard descriptors; None for a closed one."""
    found: list[tuple[int, int] | None] = []
    for number in range(3):
        try:
            status = os.fstat(number)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return found


def _threads() -> list[int | None]:
    """The threads that run code of the suite, which may affect the next test."""
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    frames = sys._current_frames() if threads else {}  # noqa: SLF001 - documented, for debuggers
    targets = ((thread, getattr(thread, "_target", None) or type(thread).run) for thread in threads)
    codes = ((thread, getattr(target, "__code__", None)) for thread, target in targets)
    files = ((thread.ident, code.co_filename) for thread, code in codes if code)
    return [ident for ident, file in files if _is_of_suite(file, frames.get(ident or 0))]


def _is_of_suite(file: str, frame: FrameType | None) -> bool:
    """Whether a thread whose target is in this file belongs to the suite; threads of libraries are permanent.

    A thread of the standard library, such as a worker of a pool, belongs to the suite while it runs other code.
    """
    if not is_standard_library(file):
        return "-packages/" not in file and not is_library(file)
    while frame is not None and is_standard_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


_AUTOCASTS: Final = ("cpu", "cuda")
_FLAGS: Final = ("cudnn_benchmark", "cudnn_deterministic", "cudnn_enabled", "mkldnn_enabled")
"""Flags of torch's backends."""


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _AUTOCASTS]


def _set_autocast(states: list[tuple[bool, torch.dtype]]) -> None:
    for device, (is_enabled, dtype) in zip(_AUTOCASTS, states, strict=True):
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, dtype)


def _flags() -> list[bool]:
    return [getattr(torch._C, f"_get_{name}")() for name in _FLAGS]  # noqa: SLF001 - 10 times faster than the public ones


def _set_flags(values: list[bool]) -> None:
    for name, value in zip(_FLAGS, values, strict=True):
        getattr(torch._C, f"_set_{name}")(value)  # noqa: SLF001 - see above


_top_hooks: Final[Callable[[bool], object]] = getattr(
    torch._C._autograd,  # noqa: SLF001 - no public name
    "_top_saved_tensors_default_hooks",
    lambda _: None,  # in torch 2.6
)


def _modes() -> tuple[object, ...]:
    """The active modes, apart from that of the default device."""
    functions = torch._C._len_torch_function_stack() - (_device() is not None)  # noqa: SLF001 - no public names
    return functions, torch._C._len_torch_dispatch_stack(), _top_hooks(False)  # noqa: SLF001


def _has_agent() -> bool:
    """Whether this process is a worker of RPC, which can neither be restored nor be shut down outside of the test."""
    return bool(getattr(sys.modules.get("torch.distributed.rpc"), "_is_current_rpc_agent_set", bool)())


def _set_start_method(name: str) -> None:
    multiprocessing.set_start_method(name, force=True)


_numpy: Final[Any] = sys.modules.get("numpy")
"""torch imports NumPy if it is installed."""


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
    "resource limits": (_limits, _set_limits),
    "faulthandler's watchdog": (lambda: _watchdog.is_set, _set_watchdog),
    "interval timers": (_timers, _set_timers),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "trace functions": (lambda: (sys.gettrace(), sys.getprofile()), _set_trace),
    "exception hooks": (_hooks, _set_hooks),
    "the garbage collector": (lambda: (gc.isenabled(), gc.get_threshold()), _set_collector),
    "the socket timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "logging.disable": (lambda: logging.root.manager.disable, logging.disable),
    "imported modules": (_imports, _set_imports),
    "builtins": _names_of(builtins),
    # If a test replaced these, later tests might check nothing.
    "names of pytest": _names_of(pytest),
    # The end of the gang calls destroy_process_group, so a changed one shows there.
    "names of torch.distributed": _names_of(distributed, but="destroy_process_group"),
    "names of torch.testing": _names_of(torch.testing),
    "names of unittest.TestCase": _names_of(unittest.TestCase),
    "sys.argv": (lambda: sys.argv and list(sys.argv), lambda arguments: setattr(sys, "argv", [*arguments])),
    "running threads": (_threads, None),
    "the CPU affinity": (lambda: os.sched_getaffinity(0), lambda processors: os.sched_setaffinity(0, processors)),
    "the process group and session": (lambda: (os.getpgrp(), os.getsid(0)), None),
    "the user": (os.getresuid, lambda user: os.setresuid(*user)),
    "the temporary folder": (lambda: tempfile.tempdir, lambda folder: setattr(tempfile, "tempdir", folder)),
    "the limit of integer digits": (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "the start method of multiprocessing": (
        lambda: multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        _set_start_method,
    ),
    **({"NumPy's error handling": (_numpy.geterr, lambda ways: _numpy.seterr(**ways))} if _numpy else {}),
    "torch's autocast": (_autocast, _set_autocast),
    "torch's backends": (_flags, _set_flags),
    "torch's modes": (_modes, None),
    "the standard streams": (_streams, _set_streams),
    "the standard descriptors": (_descriptors, None),
    "os.environ": (lambda: os.environ, _set_environ),
    "torch's RPC agent": (_has_agent, None),
    GROUP: (lambda: distributed.group.WORLD, None),
}
"""The function that reads each part of the state, and the one that restores it; None if that is impossible."""

UNCERTAIN: Final = frozenset(
    {"imported modules", "builtins", "the standard streams", *(name for name in PARTS if name.startswith("names of "))}
)
"""The parts that several assignments restore as far as possible, without certainty."""

_State = dict[str, Any]
"""Values by name, such as ``variable HOME``, ``signal handler SIGINT`` or ``logger a.b``; None if unset."""

_VARIABLE: Final = "variable "
_HANDLER: Final = "signal handler "
_LOGGER: Final = "logger "
_OURS: Final = frozenset({"PYTEST_CURRENT_TEST", "ALLRANKS_SEED"})
_OURS_ENCODED: Final = frozenset(map(os.fsencode, _OURS))
_OF_TORCH: Final = ("TORCHINDUCTOR_", "TRITON_", "KINETO_")
"""Prefixes of variables that torch sets when parts of it are imported."""

_NAMED: Final = frozenset(signal.Signals)
_SIGNALS: Final = tuple(sorted(set(map(int, signal.valid_signals())) - {signal.SIGKILL, signal.SIGSTOP}))


class InitialState(MetaPathFinder):
    """The process state at the start of each test of a gang: the base state.

    It is also an import finder, so that changes by a module that a test imports become part of the base state: the
    module is not executed again for later tests.
    """

    def __init__(self) -> None:
        track_watchdog()
        self._is_importing = False
        sys.meta_path.insert(0, self)
        note_imports()
        self._base = _read()
        # A summary of the base state; None if the base state has changed since.
        self._summary: list[Any] | None = _summary()
        # Values that fixtures of wider scope have replaced, and may restore.
        self._before: dict[str, list[Any]] = {}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:  # noqa: ANN401 - importlib's
        """Find a module with the other finders; None within another import, and in threads other than the main one."""
        if self._is_importing or threading.current_thread() is not threading.main_thread():
            return None
        self._is_importing = True
        try:
            finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
            others = (finder for finder in finders if not isinstance(finder, InitialState))
            spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        finally:
            self._is_importing = False
        if spec is not None and isinstance(spec.loader, FileLoader):  # pytest's own loader is shared by several modules
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
    def extending(self) -> Generator[None, None, None]:
        """Add all changes within this block to the base state, such as those of a fixture with a wider scope."""
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
            self._summary = None

    def accept_restored(self) -> None:
        """Update the base state with the values that a fixture with a wider scope has restored in its teardown."""
        now = _read()
        for name in _differences(self._base, now):
            if any(now.get(name) == before for before in self._before.get(name, ())):
                self._base[name] = now.get(name)
        self._summary = None

    def restore(self) -> tuple[list[str], list[str]]:
        """Restore what a test has changed; return the names of restored parts, and of those that may still differ."""
        if _summary() == self._summary:
            return [], []
        changed = list(_differences(self._base, _read()))
        for name in changed:
            with suppress(OSError, ValueError, TypeError, RuntimeError, locale.Error):
                _restore(name, self._base.get(name))
        differing = set(_differences(self._base, _read()))
        left = [name for name in changed if name in differing or name in UNCERTAIN]
        self._summary = _summary()
        return [name for name in changed if name not in left], left


class UnusedState:
    """Replaces InitialState in a gang that runs one test: reading the state would copy the memory of all modules."""

    def extending(self) -> AbstractContextManager[None]:
        return nullcontext()

    def accept_restored(self) -> None:
        """Do nothing."""

    def restore(self) -> tuple[list[str], list[str]]:
        return [], []


def _read() -> _State:
    state: _State = {name: read() for name, (read, _) in PARTS.items()}
    variables = ((name, value) for name, value in ENVIRON.items() if not name.startswith(_OF_TORCH))
    state.update((f"{_VARIABLE}{name}", value) for name, value in variables if name not in _OURS)
    state.update((f"{_LOGGER}{name}", value) for name, value in loggers().items())
    for number in _SIGNALS:
        state[f"{_HANDLER}{signal.Signals(number).name if number in _NAMED else number}"] = signal.getsignal(number)
    return state


def _summary() -> list[Any]:
    """A form of the state that is equal if nothing has changed, and takes a fifth of the time."""
    variables = {name: value for name, value in ENVIRON._data.items() if name not in _OURS_ENCODED}  # type: ignore[attr-defined]  # noqa: SLF001
    # signal.getsignal would create enum members, which takes ten times as long.
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
