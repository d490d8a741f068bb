"""Starts processes of ``multiprocessing`` with the methods ``spawn`` and ``forkserver`` from a warm server.

Such a process is normally a new interpreter, which has to import torch again. Instead, a server
(:mod:`allranks.agent.warm_server`), a new interpreter below the rank, imports the packages of the suite's modules once
and forks each process. The rank is the parent, as with ``spawn``. The server starts when it is first needed.

A process gets its environment, working directory and descriptors from its request. The rest (limits, signals, and what
packages did with variables during import) comes from the server. If these differ in the rank, the server is replaced,
but at most once per test, because a test may set a different variable for each process.
"""

import ctypes
import io
import itertools
import multiprocessing.context
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import popen_forkserver, popen_spawn_posix, reduction, resource_tracker, spawn, util
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from allranks.agent import child_observer, linux, warm_server
from allranks.agent.orphans import REAP_TIMEOUT
from allranks.protocol.launcher_variables import RANK_VARIABLES

_TEST_VARIABLE: Final = "PYTEST_CURRENT_TEST"
_OF_A_TEST: Final = (_TEST_VARIABLE, "ALLRANKS_SEED")
_STATUS_FIELDS: Final = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "CapEff", "Cpus_allowed")
"""Fields of ``/proc/self/status`` (proc(5))."""

_TOOLS: Final = frozenset({"allranks", "pytest", "_pytest"})


class _ServerError(Exception):
    """The server has ended or cannot start a process; the message is the reason."""


class WarmChildren:
    """Makes ``multiprocessing`` in this process, but not in its forks, start processes from the server.

    Args:
        code: The folder of the suite's code.
        tests: The paths of its tests, relative to that folder.
    """

    def __init__(self, code: Path, tests: Sequence[str]) -> None:
        self._code = code
        self._tests = tests
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._obstacle = ""
        self._reasons: dict[str, bool] = {}  # whether each has been reported
        for kind in (multiprocessing.context.SpawnProcess, multiprocessing.context.ForkServerProcess):
            kind._Popen = staticmethod(self._warm_start(kind._Popen, kind._start_method))  # type: ignore[method-assign,assignment] # noqa: SLF001

    def take_reasons(self) -> tuple[str, ...]:
        """The new reasons why processes were not started from the server."""
        new = tuple(reason for reason, is_reported in self._reasons.items() if not is_reported)
        self._reasons.update(dict.fromkeys(new, True))
        return new

    def _warm_start(self, start: Callable[[Any], Any], method: str) -> Callable[[Any], Any]:
        def start_warm(process: Any) -> Any:  # noqa: ANN401 - of multiprocessing
            if os.getpid() == self._pid:
                with self._lock:  # torch starts processes from several threads
                    try:
                        environment = _environment()
                        return _Popen(process, method, self._ready_server(environment), environment)
                    except (_ServerError, OSError) as error:
                        self._reasons.setdefault(str(error), False)
            return start(process)

        return start_warm

    def _ready_server(self, environment: Mapping[str, str]) -> "_Server":
        if self._obstacle:
            raise _ServerError(self._obstacle)
        inherited = _inherited(environment)
        test = os.environ.get(_TEST_VARIABLE, "").rpartition(" (")[0]  # without the phase, which pytest appends
        server = self._server
        if server is not None and not server.has_ended():
            if server.inherited == inherited:
                server.test = test
                return server
            if server.test == test:
                names = {name for name, value in inherited.items() ^ server.inherited.items()}
                msg = f"processes of the same test differ in {', '.join(sorted(names))}"
                raise _ServerError(msg)
            server.end()
        self._server = None
        server = _Server(inherited, _installed_modules(self._code, self._tests))
        if server.obstacle:
            self._obstacle = server.obstacle
            server.end()
            raise _ServerError(server.obstacle)
        server.test = test
        self._server = server
        return server


class _Server:
    """The rank's connection to the server.

    Attributes:
        obstacle: Why the server cannot start processes; empty if it can.
    """

    def __init__(self, inherited: Mapping[str, str], packages: Mapping[str, str]) -> None:
        self.inherited = inherited
        self.test = ""  # the last test that used it
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = warm_server.PROGRAM.format(path=warm_server.__file__, descriptor=theirs.fileno())
            command = spawn.get_command_line()
            command[command.index("-c") + 1] = program
            self._pid = util.spawnv_passfds(os.fsencode(command[0]), command, [theirs.fileno()])
        child_observer.ignore(self._pid)
        try:
            reply = self._request(packages)
        except _ServerError:
            reply = b"the interpreter that should start them ended while it imported their packages"
        self.obstacle = "" if reply == warm_server.READY else reply.decode()

    def fork(self, method: str, environment: Mapping[str, str], descriptors: Sequence[int]) -> int:
        """Fork a child of this process with these descriptors."""
        request = {"method": method, "environment": environment, "folder": os.getcwd()}  # noqa: PTH109 - a str
        with linux.adopting_orphans():
            pid = int(self._request(request, (0, 1, 2, *descriptors)))
        if not pid:
            msg = "no further process can be started"
            raise _ServerError(msg)
        return pid

    def _request(self, request: object, descriptors: Sequence[int] = ()) -> bytes:
        most = warm_server.MOST_DESCRIPTORS - 1  # one is that of the request
        if len(descriptors) > most:
            msg = f"a process inherits {len(descriptors)} files, but at most {most} can be passed"
            raise _ServerError(msg)
        file = os.memfd_create("request")
        try:
            linux.write_all(file, pickle.dumps(request))
            os.lseek(file, 0, os.SEEK_SET)
            socket.send_fds(self._connection, [b"."], [file, *descriptors])
        finally:
            os.close(file)
        if reply := self._connection.recv(1 << 16):
            return reply
        msg = "the process that should start them has ended"
        raise _ServerError(msg)

    def has_ended(self) -> bool:
        if linux.reap(self._pid, 0.0) is None and Path(f"/proc/{self._pid}").exists():
            return False
        self._connection.close()
        return True

    def end(self) -> None:
        self._connection.close()
        linux.signal_process(self._pid, signal.SIGKILL)
        linux.reap(self._pid, REAP_TIMEOUT)


class _Popen(popen_spawn_posix.Popen):
    """A process that the server starts; the ``multiprocessing.Process`` is serialized as for Python's fork server."""

    DupFd = popen_forkserver._DupFd  # type: ignore[assignment] # noqa: SLF001
    duplicate_for_child = popen_forkserver.Popen.duplicate_for_child

    def __init__(self, process: Any, method: str, server: _Server, environment: Mapping[str, str]) -> None:  # noqa: ANN401
        self._server = server
        self._environment = environment
        self.method = method  # type: ignore[misc]
        super().__init__(process)

    def _launch(self, process: Any) -> None:  # noqa: ANN401
        data = io.BytesIO()
        multiprocessing.context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process._name), data)  # noqa: SLF001
            reduction.dump(process, data)
        finally:
            multiprocessing.context.set_spawning_popen(None)
        self.sentinel, alive = os.pipe()
        reader, writer = os.pipe()
        self.finalizer = util.Finalize(self, util.close_fds, (self.sentinel, writer))  # type: ignore[attr-defined]
        tracker = resource_tracker.getfd() or 0  # never None: this starts the tracker
        descriptors = (reader, alive, tracker, *self._fds)  # type: ignore[attr-defined]
        try:
            self.pid = self._server.fork(self.method, self._environment, descriptors)
        finally:
            os.close(reader)
            os.close(alive)
        with open(writer, "wb", closefd=False) as file:
            file.write(data.getbuffer())


def _environment() -> dict[str, str]:
    """The environment that a new program gets; ``os.environ`` lacks variables that C libraries have set."""
    area = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    entries = itertools.takewhile(lambda entry: entry is not None, map(area.__getitem__, itertools.count()))
    return dict(entry.split("=", 1) for entry in map(os.fsdecode, entries) if "=" in entry)


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The attributes of this thread that a process would get from the server, not from its request, by name."""
    lines = Path("/proc/thread-self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {
        # Without variables that identify a rank or a test, which no package reads during import.
        **{
            name: value
            for name, value in environment.items()
            if not RANK_VARIABLES.fullmatch(name) and name not in _OF_A_TEST
        },
        **{f"{name} of /proc/self/status": status.get(name, "") for name in _STATUS_FIELDS},
        "/proc/self/limits": Path("/proc/self/limits").read_text(encoding="ascii"),
        "session, process group and priority": f"{os.getsid(0)} {os.getpgrp()} {os.getpriority(os.PRIO_PROCESS, 0)}",
        "the interpreter and its options": " ".join(map(os.fsdecode, spawn.get_command_line())),
    }


def _installed_modules(code: Path, tests: Sequence[str]) -> dict[str, str]:
    """The files, by name in the order of import, of the modules that the suite uses, and of their top packages.

    Modules in the top folders of the tests are left out, because only a process itself may import them.
    """
    modules = {name: module for name, module in sys.modules.copy().items() if isinstance(module, ModuleType)}
    files = {
        name: file for name, module in modules.items() if isinstance(file := getattr(module, "__file__", None), str)
    }
    own = [modules[name] for name, file in files.items() if Path(file).is_relative_to(code) and not _is_installed(file)]
    imported = {name for module in own for name in _names_in(module)}
    imported |= {name.partition(".")[0] for name in imported}
    roots = {code.joinpath(*Path(path).parts[:1]) for path in tests}
    return {
        name: file
        for name, file in files.items()
        if name in imported
        and name.partition(".")[0] not in _TOOLS
        and roots.isdisjoint({Path(file), *Path(file).parents})
    }


def _names_in(module: ModuleType) -> Iterator[str]:
    """The names of the modules in the namespace of a module, and of those that define its other values."""
    for value in [*vars(module).values()]:
        with suppress(Exception):  # this may run arbitrary code
            name = value.__name__ if isinstance(value, ModuleType) else value.__module__
            if isinstance(name, str):
                yield name


def _is_installed(file: str) -> bool:
    """Whether a file is in a folder of installed packages, which may be below the code."""
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts))
