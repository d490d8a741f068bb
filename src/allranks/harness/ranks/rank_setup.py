"""The life of a forked process that runs tests: how it is set up, and how it ends."""

import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from allranks.harness import evidence, kernel
from allranks.harness.ranks import leaving
from allranks.harness.ranks.printing import print_at_once
from allranks.harness.stacks.stacks import STACKS_SIGNAL

ADOPTION_PATIENCE = 5.0
"""Seconds for the process that has forked a rank to end: the rank is its grandparent's child then."""


def live(work: Callable[[], int], parent: int, *, stacks: Path, environment: Mapping[str, str]) -> NoReturn:
    """Be a process of its own until `work` is done. Never returns: the fork must not run its parent's code.

    The process leads a session, dies with its parent, and prints without buffers.

    Args:
        work: What it does; returns the exit status.
        parent: Process id of its parent, which may still have to become that.
        stacks: The file that gets its stacks, on request and on a fatal signal.
        environment: Variables to set.
    """
    status = 1
    try:
        os.setsid()
        _die_with(parent)
        kernel.allow_tracing(parent)
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
        leaving.leave(status)


def _die_with(parent: int) -> None:
    """Die when the parent does; whoever has forked this process in its place ends first, and must not count."""
    deadline = time.monotonic() + ADOPTION_PATIENCE
    while os.getppid() != parent and time.monotonic() < deadline:
        time.sleep(0.0005)
    kernel.die_with_parent()
    if os.getppid() != parent:
        # It is gone already.
        os._exit(1)


def _set_up(stacks: Path, environment: Mapping[str, str]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file = os.fdopen(evidence.open_end(stacks), "ab")
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    # Standard error is a pipe with room for little, and the stacks are wanted apart.
    faulthandler.enable(file=file, all_threads=True)
    os.environ.update(environment)
    gc.enable()
