"""Leases on GPUs, which two runs on one host never hold at once.

A lease is a lock (flock(2)) on one file for each GPU, in one folder for the whole host. It lasts as long as any
process holds its descriptor: the orchestrator, and every process of a job on the process engine. The file
says whose the lease is or was. Who has to wait stands in line (:mod:`allranks.schedule.line`).
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from allranks.engine.ownership import lock_folder, open_lock
from allranks.schedule.line import Ticket, claimed

_PREFIX = "gpu-"


@dataclass(frozen=True, kw_only=True)
class Lease(AbstractContextManager["Lease"]):
    """The exclusive hold of a job on some GPUs.

    Attributes:
        gpus: Their UUIDs.
        descriptors: The locks; whoever inherits one keeps that GPU.
    """

    gpus: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the GPUs back, as far as this process holds them."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Whose a lease is.

    Attributes:
        since: Seconds since the epoch.
    """

    run_id: str = ""
    job_id: str = ""
    pid: int = 0
    since: float = 0.0


def try_lease(
    gpus: Sequence[str], count: int, holder: Holder | None = None, ticket: Ticket | None = None
) -> Lease | None:
    """A lease on `count` of these GPUs, all of them or none; None when too few are free, or others are before us.

    Args:
        gpus: To choose from.
        count: How many.
        holder: Who asks, for :func:`holders`.
        ticket: Our place in the line.
    """
    held: dict[str, int] = {}
    for gpu in _not_claimed(gpus, ticket) if count else ():
        if len(held) == count:
            break
        descriptor = _try_lock(gpu)
        if descriptor is not None:
            held[gpu] = descriptor
    lease = Lease(gpus=tuple(held), descriptors=tuple(held.values()))
    if len(held) == count:
        for gpu, descriptor in held.items():
            _sign(descriptor, gpu, holder or Holder())
        return lease
    with lease:
        return None


def _sign(descriptor: int, gpu: str, holder: Holder) -> None:
    with suppress(OSError):  # a full disk: the lock holds without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"gpu": gpu, **asdict(holder)}).encode(), 0)


def holders(gpus: Iterable[str]) -> dict[str, Holder | None]:
    """Who holds each of these GPUs, and each that a job of this host holds besides; None for nobody."""
    signed = dict(_signed(path) for path in lock_folder().glob(f"{_PREFIX}*"))
    others = [gpu for gpu in signed if gpu not in gpus and not _is_free(gpu)]
    return {gpu: None if _is_free(gpu) else signed.get(gpu, Holder()) for gpu in dict.fromkeys((*gpus, *others))}


def _signed(path: Path) -> tuple[str, Holder]:
    """What a lock file says; nothing but a name where somebody is about to write it."""
    try:
        said = json.loads(path.read_bytes())
        return str(said.pop("gpu")), Holder(**said)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return path.name.removeprefix(_PREFIX), Holder()


def count_free(gpus: Iterable[str], ticket: Ticket | None = None) -> int:
    """How many of these GPUs nobody holds at this moment, or waits for and is before us in the line."""
    return sum(_is_free(gpu) for gpu in _not_claimed(gpus, ticket))


def _not_claimed(gpus: Iterable[str], ticket: Ticket | None) -> Iterable[str]:
    wanted = tuple(gpus)
    others = claimed(ticket) if wanted else frozenset()
    return [gpu for gpu in wanted if gpu not in others]


def _is_free(gpu: str) -> bool:
    descriptor = _try_lock(gpu)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def _try_lock(gpu: str) -> int | None:
    descriptor = open_lock(_lock_path(gpu))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _lock_path(gpu: str) -> str:
    return str(lock_folder() / f"{_PREFIX}{re.sub(r'[^A-Za-z0-9._-]', '_', gpu)}")
