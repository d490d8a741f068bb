"""Starts processes of ``multiprocessing`` as forks that have imported the packages of a suite already.

A program of its own, without allranks and pytest: :mod:`allranks.agent.rank.warm_children` starts it below a rank by
:data:`PROGRAM`. It imports what its first request names, and every further request is for one process. A process in
between forks each of them and ends, so that the rank, which adopts orphans for that moment, becomes its parent.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import importlib.util
import os
import pickle
import socket
import sys
from multiprocessing import forkserver, resource_tracker, spawn
from pathlib import Path
from typing import Any, Final, NoReturn

PROGRAM: Final = (
    "from runpy import run_path; import multiprocessing; "
    "run_path({path!r}, {{'connection': {descriptor}}}, 'allranks.warm_server')"
)
_CHILD: Final = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd={tracker}, pipe_handle={data})"
"""The programs of the server and of a process of ``multiprocessing`` (spawn.py, get_command_line)."""

MOST_DESCRIPTORS: Final = 253
"""In one message (unix(7), SCM_RIGHTS)."""

READY: Final = b"ready"
_ARGUMENTS: Final = slice(45, 47)
"""The place of the arguments' addresses in ``/proc/pid/stat``, counted after the name (proc(5): fields 48, 49)."""


def serve(server: socket.socket) -> NoReturn:
    """Serve a rank until it closes the connection."""
    files, _ = _receive(server)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for target in (1, 2):
        os.dup2(nothing, target)
    os.close(nothing)
    sys.path[:] = [entry for entry in sys.path if entry]  # not the folder in which the test happens to be
    for name, file in files.items():
        with contextlib.suppress(BaseException):  # the process that needs it gets the error
            _import(name, file)
    gc.freeze()
    server.sendall(_obstacle() or READY)
    while True:
        request, descriptors = _receive(server)
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(writing, str(child).encode())
                os._exit(0)
            for descriptor in (server.detach(), reading, writing):
                os.close(descriptor)
            _run_child(request, descriptors)
        for descriptor in (*descriptors, writing):
            os.close(descriptor)
        os.waitpid(between, 0)
        server.sendall(os.read(reading, 32) or b"0")  # nothing if there can be no further process
        os.close(reading)


def _import(name: str, file: str) -> None:
    """Import a module, if it is installed: a new interpreter finds it by itself, and in the same file as the rank."""
    package = name.partition(".")[0]
    if name == package or package in sys.modules:
        spec = importlib.util.find_spec(name)
        if spec is not None and os.path.realpath(spec.origin or "") == os.path.realpath(file):
            importlib.import_module(name)


def _receive(server: socket.socket) -> tuple[Any, list[int]]:
    """A request, which comes in a file, and what else comes with it."""
    size = array.array("i").itemsize
    _, messages, _, _ = server.recvmsg(1, socket.CMSG_SPACE(MOST_DESCRIPTORS * size))
    if not messages:
        os._exit(0)
    received = array.array("i", messages[0][2])
    with os.fdopen(received[0], "rb") as file:
        return pickle.load(file), list(received[1:])  # noqa: S301 - of the rank


def _obstacle() -> bytes:
    """Why no fork of this process is as good as a new one; empty if each is."""
    threads = [Path(f"/proc/self/task/{each}/comm").read_text().strip() for each in os.listdir("/proc/self/task")]  # noqa: PTH208
    torch: Any = sys.modules.get("torch")
    if len(threads) > 1:
        return f"its packages start {len(threads) - 1} threads when they are imported ({threads[-1]})".encode()
    if torch is not None and torch.cuda.is_initialized():
        return b"its packages initialize CUDA when they are imported"
    return b""


def _run_child(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run a process of ``multiprocessing`` as a new interpreter that the rank has started would."""
    standard, (data, _, tracker, *inherited) = descriptors[:3], descriptors[3:]
    for target, descriptor in enumerate(standard):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    _show_command(_CHILD.format(tracker=tracker, data=data))
    del sys.modules[__name__], sys.modules["__main__"].run_path
    numpy_random: Any = sys.modules.get("numpy.random")
    torch: Any = sys.modules.get("torch")
    for generator in (numpy_random, torch and torch.default_generator):
        if generator is not None:
            generator.seed()  # from the kernel's random numbers; Python's own does so itself after a fork
    observer: Any = sys.modules.get("child_observer")
    if observer is not None:
        observer.note_begin()
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined] # noqa: SLF001
    forkserver._forkserver._inherited_fds = inherited  # type: ignore[attr-defined] # noqa: SLF001
    status = spawn._main(data, os.dup(data))  # noqa: SLF001
    if request["method"] == "spawn":  # a fork server's process has never run them
        atexit._run_exitfuncs()  # noqa: SLF001 - what an interpreter runs as it ends
    sys.stdout.flush()
    sys.stderr.flush()
    # The end of an interpreter that shares its memory with another copies all of it: 0.7 s with torch 2.13.
    os._exit(status)


def _show_command(code: str) -> None:
    """Show this code as the program of this process, in place of that of the server."""
    place = sys.orig_argv.index("-c") + 1
    sys.orig_argv[place] = code
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = map(int, stat[_ARGUMENTS])
    if start:  # else the kernel does not tell
        text = b"".join(os.fsencode(each) + b"\0" for each in sys.orig_argv)
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if "connection" in globals():
    serve(socket.socket(fileno=globals()["connection"]))
