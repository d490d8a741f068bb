"""Rank 1 sends forged messages over its sockets with the process numbers of others as its own."""

import os
import socket
import struct
from contextlib import suppress

import reach

TRUTH = {"engines": ["docker"], "tests": {"test_attack": ["honest", "any"]}}

SCM_CREDENTIALS = 2


def test_attack(rank):
    for number in reach.own_descriptors() if rank == 1 else ():
        for pid in reach.pids():
            with suppress(OSError):
                credentials = struct.pack("3i", pid, os.getuid(), os.getgid())
                channel = socket.socket(fileno=os.dup(number))
                channel.setblocking(False)
                channel.sendmsg([reach.plausible()], [(socket.SOL_SOCKET, SCM_CREDENTIALS, credentials)])
                channel.close()
