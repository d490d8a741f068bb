"""Rank 1 makes all functions of the modules by which processes talk return nothing."""

import io
import pickle
import selectors
import signal
import socket
import struct
import threading
import types

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "any"], "test_next": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    for module in (pickle, selectors, signal, socket, struct, threading, io) if rank == 1 else ():
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type) and not name.startswith("_"):
                setattr(module, name, lambda *_, **__: None)


def test_next(rank):
    assert rank == 0
