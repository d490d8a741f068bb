"""Gives each process group that a suite makes by ``env://`` a port of its own.

The ranks of a gang may make one group after another, for each class or each test. Under one port, a rank that is ahead
would connect to the store of the last group, which its peer is about to close (measured: half of all second groups of
a class hang or fail). Every rank makes the same groups, so all take the ports in the same order.
"""

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import cycle
from typing import Any

from allranks.protocol.config import PORTS

_PORT = "MASTER_PORT"


def give_ports() -> None:
    """Have ``env://`` take the next port each time, unless the suite has set one itself."""
    ports = os.environ.pop(PORTS, "").split(",")
    # torch refuses to register a handler again, and has no public way to replace one.
    handlers = getattr(import_module("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    if ports[0] and "env" in handlers:
        handlers["env"] = _taking_turns(handlers["env"], ports)


def _taking_turns(handler: Callable[..., Iterator[Any]], ports: list[str]) -> Callable[..., Iterator[Any]]:
    following = cycle(ports)

    def handle(*arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - torch's
        if os.environ.get(_PORT) != ports[0]:
            yield from handler(*arguments, **options)
            return
        results = handler(*arguments, **options)
        os.environ[_PORT] = next(following)
        try:
            # The handler reads the variable when it is asked for its first result.
            first = next(results)
        finally:
            os.environ[_PORT] = ports[0]
        yield first
        yield from results

    return handle
