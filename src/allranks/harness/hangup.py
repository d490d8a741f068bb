"""Notices the end of standard input while nothing is watching it: during imports and collection."""

import fcntl
import os
import select
import signal

HANGUP_STATUS = 130
"""Exit status of an agent that was told to stop."""


def leave_on_hangup(stdin: int) -> None:
    """End this process at once when `stdin` ends.

    The kernel sends SIGIO on any change of the pipe, so the handler looks whether it was the end.
    """

    def leave_at_end(_number: int = 0, _frame: object = None) -> None:
        poll = select.poll()
        poll.register(stdin, 0)
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            os._exit(HANGUP_STATUS)

    signal.signal(signal.SIGIO, leave_at_end)
    fcntl.fcntl(stdin, fcntl.F_SETOWN, os.getpid())
    _set_async(stdin, os.O_ASYNC)
    # No signal comes for an end that was there before.
    leave_at_end()


def watch_no_more(stdin: int) -> None:
    """Undo :func:`leave_on_hangup`: from here on the gangs' own loop watches standard input."""
    _set_async(stdin, 0)
    signal.signal(signal.SIGIO, signal.SIG_IGN)


def _set_async(descriptor: int, flag: int) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_ASYNC
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)
