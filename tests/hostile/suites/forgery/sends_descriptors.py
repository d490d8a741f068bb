"""Rank 1 sends its own descriptors along with messages, more than a reader that does not close them can hold."""

import array
import os
import socket
from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    gifts = array.array("i", [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]) if rank == 1 else ()
    for number in reach.own_descriptors() if rank == 1 else ():
        for _ in range(20):
            with suppress(OSError):
                channel = socket.socket(fileno=os.dup(number))
                channel.setblocking(False)
                channel.sendmsg([b"{}\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, gifts)])
                channel.close()
