"""The life of a forked process that runs tests: how it is set up, and how it ends."""

import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from allranks.harness import kernel
from allranks.harness.ranks.printing import print_at_once
from allranks.harness.signals import ENDING
from allranks.harness.stacks.stacks import STACKS_SIGNAL


def live(work: Callable[[], int], *, stacks: Path, environment: Mapping[str, str]) -> NoReturn:
    """Be a process of its own until `work` is done. Never returns: the fork must not run its parent's code.

    The process leads a session, dies with its parent, and prints without buffers.

    Args:
        work: What it does; returns the exit status.
        stacks: The file that gets its stacks, on request and on a fatal signal.
        environment: Variables to set.
    """
    status = 1
    try:
        os.setsid()
        kernel.die_with_parent()
        kernel.allow_tracing(os.getppid())
        _before = print_at_once()
        _set_up(stacks, environment)
        status = work()
    except BrokenPipeError:
        # The parent is gone, and the kernel is about to end this process too.
        pass
    except BaseException:  # noqa: BLE001 - the last frame of this process: there is nobody left to raise to
        traceback.print_exc()
    finally:
        leave(status)


def leave(status: int) -> NoReturn:
    """End this process, whatever a test has done to its output."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _set_up(stacks: Path, environment: Mapping[str, str]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGIO, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    file = stacks.open("a", encoding="utf-8")
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    # Standard error is a pipe with room for little, and the stacks are wanted apart.
    faulthandler.enable(file=file, all_threads=True)
    os.environ.update(environment)
    gc.enable()
