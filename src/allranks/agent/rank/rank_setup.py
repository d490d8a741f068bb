"""The setup of a forked process that runs tests, its random seeds, its output, and its announced exit.

``os._exit`` is replaced before the suite is imported, so that the main thread of a rank announces its exit status.
Exits by other threads, C code or processes that a test forked are not announced.
"""

import contextlib
import ctypes
import faulthandler
import gc
import io
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import getpid
from pathlib import Path
from random import seed as _seed_python  # bound now, because tests may patch it
from types import FrameType
from typing import BinaryIO, NoReturn, TextIO

from allranks.agent import clock, evidence, linux
from allranks.agent.channel import Leaving, Message, PhasesEnded, RankEnd
from allranks.agent.diagnose.stacks import MAIN_STACK_SIGNAL, STACKS_SIGNAL
from allranks.agent.orphans import show_marks
from allranks.protocol import skip_codes
from allranks.protocol.outcomes import Phase


def seed_everything(seed: int) -> None:
    """Seed Python and, if loaded, NumPy and torch on all devices; a seed has at most 32 bits, NumPy's limit."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        # Only with CUDA: it takes 0.7 ms, because each type of accelerator defers its seeding and formats a stack.
        torch.manual_seed(seed)
    seed_generators(seed)


def seed_generators(seed: int) -> None:
    """Seed Python and, if loaded, NumPy and torch on the CPU; a seed has at most 32 bits, NumPy's limit."""
    _seed_python(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


_LINE_BUFFERED = 1  # _IOLBF of glibc and musl

_libc = ctypes.CDLL(None)


def unbuffer_output() -> tuple[TextIO, ...]:
    """Unbuffer the standard streams of this process, and make the stdout of the C library line-buffered.

    Returns:
        The previous streams, which the caller must keep: their finalizers would close the descriptors.
    """
    before = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    sys.stdout = sys.__stdout__ = _unbuffered(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2)  # type: ignore[misc]
    with contextlib.suppress(ValueError):  # the C library uses other names for its streams
        _libc.setvbuf(ctypes.c_void_p.in_dll(_libc, "stdout"), None, _LINE_BUFFERED, 0)
    return tuple(stream for stream in before if stream is not None)


def _unbuffered(descriptor: int) -> io.TextIOWrapper:
    # closefd=False, because tests may close their streams, but must not close the descriptor.
    raw = os.fdopen(descriptor, "wb", buffering=0, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def flush_output() -> None:
    """Flush all output streams of C code."""
    _libc.fflush(None)


_exit = os._exit
_dump_stacks = faulthandler.dump_traceback

_TEAR_DOWNS = frozenset({"_callTearDown", "_callCleanup"})
"""Methods of unittest's synchronous and asynchronous test cases (Python 3.11 to 3.14)."""


@dataclass
class _Announcer:
    connection: RankEnd | None = None
    take_phases: Callable[[], tuple[Phase, ...]] = tuple
    nodeid: str = ""
    pid: int = 0
    stacks: BinaryIO | None = None


_rank = _Announcer()


def announce_exits() -> None:
    """Make ``os._exit`` announce the exit of a rank."""
    os._exit = announce_and_exit


def announce_to(connection: RankEnd, take_phases: Callable[[], tuple[Phase, ...]] = tuple) -> None:
    """Make this process a rank; `take_phases` returns the phases that have ended but were not reported yet."""
    _rank.connection, _rank.take_phases, _rank.pid = connection, take_phases, getpid()


def set_running_test(nodeid: str) -> None:
    """Set the test that an announced exit is about; empty for none."""
    _rank.nodeid = nodeid


def send(message: Message) -> None:
    """Send a message to the supervisor, if this process is a rank."""
    if _rank.connection is not None and _rank.pid == os.getpid():
        _rank.connection.send(message)


def end_fork(*, is_bad: bool, text: Callable[[], str]) -> None:
    """End this process if it is a fork that the test created: only the rank itself may continue after the test.

    The exit status is 1 if the outcome is bad, because the rank may check it.
    """
    if getpid() != _rank.pid:
        if is_bad:
            print(text(), file=sys.stderr)
        os._exit(is_bad)


def save_coverage() -> None:
    """Save the data that coverage.py has measured in this process so far, if any.

    Forks of a measuring process also measure. Each saves to its own file, named after the process, next to that of the
    fork server, which combines them.
    """
    module = sys.modules.get("coverage")
    with suppress(Exception), warnings.catch_warnings():
        measuring = module.Coverage.current() if module is not None else None
        if measuring is not None:
            # Ignore warnings about code that this rank did not run; its peers may have run it.
            warnings.simplefilter("ignore")
            measuring.stop()
            measuring.save()
            measuring.start()


def announce_and_exit(status: int) -> NoReturn:
    """Announce the exit of a rank, and end this process as ``os._exit`` does.

    The rank also writes its stacks, which show the line that called ``os._exit``.
    """
    is_own = _rank.pid == getpid() and threading.current_thread() is threading.main_thread()
    if _rank.connection is not None and is_own and isinstance(status, int):
        save_coverage()
        with suppress(Exception):
            reason = skip_codes.reason_of_exit(status) or ""
            phases = _rank.take_phases()
            has_ended = is_failure(sys.exception()) or tears_down(traceback.walk_stack(sys._getframe()))  # noqa: SLF001
            nodeid = "" if has_ended else _rank.nodeid
            if phases:
                _rank.connection.send(PhasesEnded(nodeid=nodeid, phases=phases))
            _rank.connection.send(Leaving(nodeid=nodeid, status=status, reason=reason))
            if _rank.stacks is not None:
                _dump_stacks(_rank.stacks)
    _exit(status)


def is_failure(error: BaseException | None) -> bool:
    """Whether an exception means that the test has failed, so that an exit in ``finally`` or ``except`` is no skip."""
    import pytest  # noqa: PLC0415 - the fork server imports this module first, and reports a missing pytest

    return isinstance(error, AssertionError | pytest.fail.Exception)


def tears_down(stack: Iterable[tuple[FrameType, int]]) -> bool:
    """Whether a stack or a traceback contains a teardown or cleanup of unittest.

    For pytest these belong to the call, but the test itself has ended and may have failed, so an exit is no skip.
    """
    return any(
        frame.f_code.co_name in _TEAR_DOWNS and frame.f_globals.get("__name__", "").startswith("unittest.")
        for frame, _ in stack
    )


ADOPTION_TIMEOUT = 60.0
"""Maximum seconds until the parent adopts the rank: the intermediate process that forked it must end first, which may
take over 5 s on a busy host."""


def run_in_fork(work: Callable[[], int], parent: int, *, stacks: Path, environment: Mapping[str, str]) -> NoReturn:
    """Run `work` in this fork, then exit. Never returns, because the fork must not run its parent's code.

    The process dies with its parent, and its output is unbuffered.
    """
    status = 1
    try:
        bind_to_parent(parent)
        _before = unbuffer_output()
        _set_up(stacks, environment)
        status = work()
    except BrokenPipeError:
        # The parent is gone, and the kernel is about to end this process as well.
        pass
    except BaseException:  # noqa: BLE001 - no caller is left
        traceback.print_exc()
    finally:
        leave(status)


_stack_files: list[BinaryIO] = []
"""Kept open: a fork that registers its own file would otherwise drop that of its parent, with a ResourceWarning."""


def write_stacks_to(path: Path) -> BinaryIO:
    """Make this process append its stacks to a file when it gets a signal for this, or crashes; returns the file."""
    file = os.fdopen(evidence.open_end(path), "ab")
    _stack_files.append(file)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    faulthandler.register(MAIN_STACK_SIGNAL, file=file, all_threads=False)
    # Not to standard error: its pipe is small, and the stacks are needed separately.
    faulthandler.enable(file=file, all_threads=True)
    return file


def bind_to_parent(parent: int) -> None:
    """Once: let the parent trace this fork, which dies with it, or before it when memory runs out."""
    if linux.death_signal():
        return
    _die_with(parent)
    linux.allow_tracing(parent)
    linux.offer_to_memory_killer()


def leave(status: int) -> NoReturn:
    """Flush the output and end this process, as planned: no stacks are needed."""
    _rank.stacks = None
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        announce_and_exit(status)


def _die_with(parent: int) -> None:
    """Once the intermediate process has ended, make this process die with its parent."""
    deadline = clock.monotonic() + ADOPTION_TIMEOUT
    while os.getppid() != parent and Path(f"/proc/{parent}").exists() and clock.monotonic() < deadline:
        clock.sleep(0.0005)
    linux.die_with_parent()
    if os.getppid() != parent:
        # The parent is gone already.
        os._exit(1)


def _set_up(stacks: Path, environment: Mapping[str, str]) -> None:
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    _rank.stacks = write_stacks_to(stacks)
    os.environ.update(environment)
    show_marks(environment)
    gc.enable()
