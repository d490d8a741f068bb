"""A timer that is a descriptor: it wakes whoever waits for descriptors, and nobody has to look at a clock."""

import ctypes
import os

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """Readable every so many seconds (timerfd_create(2), which Python wraps from 3.13 on).

    Args:
        seconds: From one time to the next.

    Raises:
        OSError: The system has no descriptor left.
    """

    def __init__(self, seconds: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = _checked(libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC))
        whole, fraction = divmod(seconds, 1)
        every = _Timespec(int(whole), int(fraction * 1e9))
        _checked(libc.timerfd_settime(self._descriptor, 0, ctypes.byref(_Itimerspec(every, every)), None))

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def has_gone_off(self) -> bool:
        """Whether it has since the last call; it will again."""
        try:
            return bool(os.read(self._descriptor, 8))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
