"""Calls that last exactly as long as a test wants them to: the callee waits at a gate that the caller opens."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed import rpc

SHORT = 0.05
"""Seconds: any time is too short for a call that waits at a closed gate."""

_LONGEST = 60.0

# One for each waiting call: caller and callee know it by name, and only a module's state is there for both.
_gates: dict[str, threading.Event] = {}
_numbers = itertools.count()


def _gate(name: str) -> threading.Event:
    return _gates.setdefault(name, threading.Event())


def wait_at(name: str, value: int = 0) -> Tensor:
    """Wait on the callee until the gate is opened, and answer with a tensor of ``value``.

    Raises:
        TimeoutError: It was not opened.
    """
    if not _gate(name).wait(_LONGEST):
        msg = f"gate {name} was not opened in {_LONGEST:g} s"
        raise TimeoutError(msg)
    return torch.tensor(value)


class Gated:
    """An object that is made only once a gate is open, and has a method of the same kind.

    Args:
        gate: The gate of its making; empty for none.
        value: What it holds.
    """

    def __init__(self, gate: str, value: int) -> None:
        if gate:
            wait_at(gate)
        self.value = value

    def value_after(self, gate: str) -> Tensor:
        """The value, once the gate is open."""
        return wait_at(gate, self.value)

    def value_at_once(self) -> int:
        """The value."""
        return self.value


def _open(name: str) -> None:
    _gate(name).set()


@contextmanager
def closed_gate(worker: str) -> Iterator[str]:
    """The name of a gate on a worker, which is opened at the end of the ``with``, also after a failure."""
    name = f"{rpc.get_worker_info().name}-{next(_numbers)}"
    try:
        yield name
    finally:
        rpc.rpc_sync(worker, _open, args=(name,), timeout=_LONGEST)


def open_gate(worker: str, name: str) -> None:
    """Let the calls at a gate go on."""
    rpc.rpc_sync(worker, _open, args=(name,), timeout=_LONGEST)
