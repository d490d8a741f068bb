"""Starts processes of ``multiprocessing`` as forks that have already imported the packages of a suite.

This is a program of its own, without allranks and pytest: :mod:`allranks.agent.rank.warm_children` starts it below a
rank with :data:`PROGRAM`. It imports the modules in its first request, and starts one process for each later request.
An intermediate process forks it and exits, so that the rank, which adopts orphans at that moment, becomes its parent.
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
"""The program of a process of ``multiprocessing`` (spawn.py, get_command_line)."""

MOST_DESCRIPTORS: Final = 253
"""Maximum number of descriptors in one message (unix(7), SCM_RIGHTS)."""

READY: Final = b"ready"
_ARGUMENTS: Final = slice(45, 47)
"""Indices of the addresses of the arguments in ``/proc/pid/stat`` after the name (proc(5): fields 48 and 49)."""


def serve(server: socket.socket) -> NoReturn:
    """Serve a rank until it closes the connection."""
    files, _ = _receive(server)
    devnull = os.open(os.devnull, os.O_WRONLY)
    for target in (1, 2):
        os.dup2(devnull, target)
    os.close(devnull)
    sys.path[:] = [entry for entry in sys.path if entry]  # without the working directory of the test
    for name, file in files.items():
        with contextlib.suppress(BaseException):  # the process that needs the module gets the error
            _import(name, file)
    gc.freeze()
    server.sendall(_obstacle() or READY)
    while True:
        server.sendall(_fork_orphan(*_receive(server), server))


def _fork_orphan(request: dict[str, Any], descriptors: list[int], server: socket.socket) -> bytes:
    """Fork a process whose parent ends at once; return its process id, or 0 if it could not be forked."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    intermediate = os.fork()
    if not intermediate:
        child = os.fork()
        if child:
            os.write(writer, str(child).encode())
            os._exit(0)
        for descriptor in (server.detach(), reader, writer):
            os.close(descriptor)
        _run_child(request, descriptors)
    for descriptor in (*descriptors, writer):
        os.close(descriptor)
    os.waitpid(intermediate, 0)
    pid = os.read(reader, 32)  # the pipe is empty if the second fork failed
    os.close(reader)
    return pid or b"0"


def _import(name: str, file: str) -> None:
    """Import a module if this new interpreter finds it in the same file as the rank did: then it is installed."""
    package = name.partition(".")[0]
    if name == package or package in sys.modules:  # find_spec imports the package of a submodule, wherever it is
        spec = importlib.util.find_spec(name)
        if spec is not None and os.path.realpath(spec.origin or "") == os.path.realpath(file):
            importlib.import_module(name)


def _receive(server: socket.socket) -> tuple[Any, list[int]]:
    """A request, which is sent as a file, and the other descriptors that are sent with it."""
    size = array.array("i").itemsize
    _, messages, _, _ = server.recvmsg(1, socket.CMSG_SPACE(MOST_DESCRIPTORS * size))
    if not messages:
        os._exit(0)
    received = array.array("i", messages[0][2])
    with os.fdopen(received[0], "rb") as file:
        return pickle.load(file), list(received[1:])  # noqa: S301 - from the rank


def _obstacle() -> bytes:
    """Why forks of this process cannot replace new interpreters; empty if they can."""
    threads = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    torch: Any = sys.modules.get("torch")
    if len(threads) > 1:
        count = "a thread" if len(threads) == 2 else f"{len(threads) - 1} threads"
        return f"its packages start {count} when they are imported ({threads[-1]})".encode()
    if torch is not None and torch.cuda.is_initialized():
        return b"its packages initialize CUDA when they are imported"
    return b""


def _run_child(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run a process of ``multiprocessing``, in the state of a new interpreter that was started by the rank."""
    data, _alive, tracker, *inherited = descriptors[3:]  # _alive is closed when this process ends: the sentinel
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    _show_command(_CHILD.format(tracker=tracker, data=data))
    del sys.modules[__name__], sys.modules["__main__"].run_path  # as in a new interpreter
    numpy_random: Any = sys.modules.get("numpy.random")
    torch: Any = sys.modules.get("torch")
    for generator in (numpy_random, torch and torch.default_generator):
        if generator is not None:
            generator.seed()  # from the kernel's random numbers; Python's own generator is seeded after each fork
    observer: Any = sys.modules.get("child_observer")  # imported by child_python/sitecustomize.py
    if observer is not None:
        observer.note_begin()
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined] # noqa: SLF001
    forkserver._forkserver._inherited_fds = inherited  # type: ignore[attr-defined] # noqa: SLF001
    status = spawn._main(data, os.dup(data))  # noqa: SLF001
    if request["method"] == "spawn":  # processes of a fork server never run them
        atexit._run_exitfuncs()  # noqa: SLF001 - as an interpreter does when it exits
    sys.stdout.flush()
    sys.stderr.flush()
    # A regular exit would copy all memory that is shared with the server: 0.7 s with torch 2.13.
    os._exit(status)


def _show_command(code: str) -> None:
    """Replace the program in the command line of this process."""
    sys.orig_argv[sys.orig_argv.index("-c") + 1] = code
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = map(int, stat[_ARGUMENTS])
    if start:  # 0 if the kernel hides the addresses
        text = b"".join(os.fsencode(argument) + b"\0" for argument in sys.orig_argv)
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "allranks.warm_server":  # run by PROGRAM
    serve(socket.socket(fileno=globals()["connection"]))
