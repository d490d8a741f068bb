"""A world for threads: the one place that touches torch's threaded process group.

torch has no public process group for threads. Its own suites use the private module
``torch.testing._internal.distributed.multi_threaded_pg``. So does this module; no other module of allranks may.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType, TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not exported for mypy

_MODULE = "torch.testing._internal.distributed.multi_threaded_pg"
_NEEDED = ("_install_threaded_pg", "_uninstall_threaded_pg", "ProcessLocalGroup", "ThreadLocalWorld")


class ThreadedWorldError(RuntimeError):
    """Ranks cannot be threads here."""


class ThreadedWorld:
    """The process groups of ranks that are threads, within :func:`threaded_world`."""

    def __init__(self, backend: ModuleType, size: int) -> None:
        self._backend = backend
        self._group: Any = backend.ProcessLocalGroup
        self._world = _current_world()
        self._store = HashStore()
        self.size = size

    @contextmanager
    def member(self, rank: int, timeout: float) -> Iterator[None]:
        """Give the calling thread, which becomes this rank, a default process group."""
        dist.init_process_group(
            "threaded", rank=rank, world_size=self.size, store=self._store, timeout=timedelta(seconds=timeout)
        )
        try:
            yield
        finally:
            # A test may have destroyed its group itself. A thread that was left running, and ends after its world, must
            # not destroy the group of the process.
            if _current_world() is self._world and dist.is_initialized():
                dist.destroy_process_group()

    def terminate(self) -> None:
        """Wake every rank that waits in a collective, or enters one later: torch raises ``SystemExit`` in it."""
        # With the lock held, no rank can add a collective to those that are being woken.
        with self._group._coll_lock:  # noqa: SLF001 - torch has no other way
            self._group.exception_handle(None)

    def is_termination(self, error: BaseException) -> bool:
        """Whether an error is the one that :meth:`terminate` causes."""
        return isinstance(error, SystemExit) and self._is_inside(error.__traceback__)

    def _is_inside(self, traceback: TracebackType | None) -> bool:
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback is not None and self.has_file(traceback.tb_frame.f_code.co_filename)

    def has_file(self, filename: str) -> bool:
        """Whether a file is that of torch's threaded group."""
        return filename == self._backend.__file__

    def reset(self) -> None:
        """Clear all collectives and the termination."""
        self._group.reset()


@contextmanager
def threaded_world(size: int) -> Iterator[ThreadedWorld]:
    """Give each thread its own world, and restore the process's world at the end.

    A default process group of this process is hidden meanwhile, and stays intact.

    Raises:
        ThreadedWorldError: This torch has no threaded process group, or this process already has a threaded world.
    """
    backend = _backend()
    if isinstance(_current_world(), backend.ThreadLocalWorld):
        msg = "ranks that are threads cannot have ranks of their own: this process has a threaded world already"
        raise ThreadedWorldError(msg)
    backend._install_threaded_pg()  # noqa: SLF001 - torch has no other way
    _isolate_threads(True)
    world = ThreadedWorld(backend, size)
    try:
        yield world
    finally:
        world.reset()
        _isolate_threads(False)
        backend._uninstall_threaded_pg()  # noqa: SLF001 - torch has no other way


def _backend() -> ModuleType:
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        why = str(error)
        raise _lacking(why) from error
    lacking = [name for name in _NEEDED if not hasattr(module, name)]
    if lacking:
        why = f"{_MODULE} has no {', '.join(lacking)}"
        raise _lacking(why)
    return module


def _lacking(why: str) -> ThreadedWorldError:
    msg = f"torch {torch.__version__} has no process group for threads that allranks supports: {why}"
    return ThreadedWorldError(msg)


def _current_world() -> object:
    return dist.distributed_c10d._world  # noqa: SLF001 - torch has no other way


def _isolate_threads(is_on: bool) -> None:
    """Give each thread its own table of groups for functional collectives, if this torch can."""
    switch = getattr(torch._C._distributed_c10d, "_set_thread_isolation_mode", None)  # noqa: SLF001 - as above
    if switch is not None:
        switch(is_on)
