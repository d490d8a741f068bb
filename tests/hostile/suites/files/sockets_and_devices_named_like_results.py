"""Rank 1 puts sockets and, where it may, devices where results are expected."""

import os
import socket
import stat
from contextlib import suppress
from itertools import cycle

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for folder in reach.results() if rank == 1 else ():
        os.chdir(folder)  # the address of a socket is short
        for name, device in zip(reach.RESULT_NAMES, cycle([None, os.makedev(1, 5)])):
            (folder / name).unlink(missing_ok=True)
            if device is not None:
                with suppress(OSError):
                    os.mknod(name, stat.S_IFCHR | 0o666, device)  # /dev/zero
                    continue
            socket.socket(socket.AF_UNIX).bind(name)
