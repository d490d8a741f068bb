"""What the tests run on other workers, and the three ways to call it."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import rpc

Call = Callable[..., Any]


def call_sync(to: object, function: Call, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what it returns
    """The result of a call that waits."""
    return rpc.rpc_sync(to, function, args=args, kwargs=kwargs)


def call_async(to: object, function: Call, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as above
    """The result of a call by its future."""
    return rpc.rpc_async(to, function, args=args, kwargs=kwargs).wait()


def call_remote(to: object, function: Call, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - as above
    """The result of a call by a reference to it, which ends here."""
    return rpc.remote(to, function, args=args, kwargs=kwargs).to_here()


in_each_mode = pytest.mark.parametrize("call", [call_sync, call_async, call_remote], ids=["sync", "async", "remote"])


def own_rank() -> int:
    """The rank of the worker that runs this."""
    return int(rpc.get_worker_info().id)


def identity(value: object) -> object:
    """Its argument, after a way to the callee and back."""
    return value


def weigh(first: Any, second: Any, third: Any) -> Any:  # noqa: ANN401 - numbers or tensors
    """A number that shows if arguments were exchanged."""
    return first + 10 * second + 100 * third


def fail(text: str) -> None:
    """Raise the text as an error."""
    raise ValueError(text)


class Account:
    """An object with a state, and methods of each kind.

    Args:
        balance: Where it begins.
    """

    fee = 3

    def __init__(self, balance: int) -> None:
        self.balance = balance

    def after(self, amount: int) -> int:
        """What the balance would be; changes nothing."""
        return self.balance + amount

    def deposit(self, amount: int) -> None:
        """Change the balance."""
        self.balance += amount

    @classmethod
    def charged(cls, amount: int) -> int:
        """The amount less a fee of the class."""
        return amount - cls.fee

    @staticmethod
    def doubled(amount: int) -> int:
        """Something without the class."""
        return 2 * amount


_GATES: defaultdict[object, threading.Event] = defaultdict(threading.Event)
_GATE_TIMEOUT = 60.0


def wait_at(gate: object) -> None:
    """Block this thread of the worker until the gate is open."""
    assert _GATES[gate].wait(_GATE_TIMEOUT), f"gate {gate} did not open"


def open_gate(gate: object) -> None:
    """Let through those that wait at a gate of this worker, and those that come later."""
    _GATES[gate].set()


_COUNTS: Counter[object] = Counter()
_LOCK = threading.Lock()


def count(key: object) -> int:
    """Count one more of something on this worker, and return the number so far."""
    with _LOCK:
        _COUNTS[key] += 1
        return _COUNTS[key]


def counted(key: object) -> int:
    """The number so far."""
    with _LOCK:
        return _COUNTS[key]
