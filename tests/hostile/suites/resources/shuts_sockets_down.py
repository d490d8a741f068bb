"""Rank 1 shuts down every socket that it has, for all who share it."""

import os
import socket
from contextlib import suppress

import reach

TRUTH = {"tests": {"test_attack": ["any", "bad"]}}


def test_attack(rank):
    if rank == 1:
        for number in reach.own_descriptors():
            with suppress(OSError):
                socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)
        raise AssertionError
