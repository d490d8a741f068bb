"""Runs a command on a kernel that seems to lack a feature: ``python without_feature.py FEATURE COMMAND...``.

A filter of system calls (seccomp(2)) returns the errors of an older kernel to the command and its descendants.
"""

import ctypes
import errno
import os
import struct
import sys
from typing import NamedTuple


class Denied(NamedTuple):
    """A system call that fails.

    Attributes:
        call: Its name.
        error: The error that the caller gets.
        argument: The index of the argument that decides, from 0; None if every call fails.
        value: The value of that argument with which a call fails.
    """

    call: str
    error: int
    argument: int | None = None
    value: int = 0


FEATURES = {
    "pidfd": [Denied("pidfd_open", errno.ENOSYS)],
    "SO_PASSCRED": [Denied("setsockopt", errno.ENOPROTOOPT, 2, 16)],
    "memfd": [Denied("memfd_create", errno.ENOSYS)],
    "child subreaper": [Denied("prctl", errno.EINVAL, 0, option) for option in (36, 37)],
    "parent death signal": [Denied("prctl", errno.EINVAL, 0, option) for option in (1, 2)],
    "dumpable flag": [Denied("prctl", errno.EINVAL, 0, option) for option in (3, 4)],
    "timerfd": [Denied("timerfd_create", errno.ENOSYS)],
    "F_OFD_SETLK": [Denied("fcntl", errno.EINVAL, 1, command) for command in (37, 38)],
}

_NUMBERS = {
    "x86_64": {
        "fcntl": 72,
        "memfd_create": 319,
        "pidfd_open": 434,
        "prctl": 157,
        "setsockopt": 54,
        "timerfd_create": 283,
    },
    "aarch64": {
        "fcntl": 25,
        "memfd_create": 279,
        "pidfd_open": 434,
        "prctl": 167,
        "setsockopt": 208,
        "timerfd_create": 85,
    },
}

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # load a word; compare with a constant; return a constant
_ARGUMENTS = 16  # offset of the first argument in ``struct seccomp_data``; each has 8 bytes
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def filter_of(denied: list[Denied]) -> bytes:
    """The program of the filter: 8 bytes per instruction (code, two jumps, constant)."""
    numbers = _NUMBERS[os.uname().machine]
    program = []
    for call in denied:
        test = []
        if call.argument is not None:
            test = [(_LOAD, 0, 0, _ARGUMENTS + 8 * call.argument), (_JUMP_IF_EQUAL, 0, 1, call.value)]
        program += [(_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, len(test) + 1, numbers[call.call])]
        program += [*test, (_RETURN, 0, 0, _FAIL | call.error)]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def deny(feature: str) -> None:
    """Disable a feature in this process and its descendants."""
    code = ctypes.create_string_buffer(filter_of(FEATURES[feature]))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    deny(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the caller names the command
