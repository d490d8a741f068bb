"""The GPUs of this host, and leases on them that two runs never hold at once.

A lease is a lock (flock(2)) on one file for each GPU, in one folder for the whole host. It lasts as long as any
process holds its descriptor: the orchestrator, and every process of a job on the process engine. The file
says whose the lease is or was.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from allranks.engine.ownership import lock_folder, open_lock
from allranks.errors import UsageError

_PREFIX = "gpu-"

GPUS_VARIABLE = "ALLRANKS_GPUS"
"""Names the GPUs, comma-separated, where they cannot be asked for: those of a remote daemon."""


def host_gpus(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The UUIDs of this host's NVIDIA GPUs, in the driver's order; empty where there is no driver."""
    if GPUS_VARIABLE in environ:
        names = (name.strip() for name in environ[GPUS_VARIABLE].split(","))
        return tuple(dict.fromkeys(name for name in names if name))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def chosen_gpus(gpus: Sequence[str], wanted: str) -> tuple[str, ...]:
    """Some of a host's GPUs.

    Args:
        gpus: All of them, in the driver's order.
        wanted: Numbers from 0, ranges of them and ids, comma-separated: ``0,2-3``. Empty for none.

    Raises:
        UsageError: One of them is not there.
    """
    parts = [part.strip() for part in wanted.split(",") if part.strip()]
    return tuple(dict.fromkeys(gpu for part in parts for gpu in _chosen(gpus, part)))


def _chosen(gpus: Sequence[str], part: str) -> Sequence[str]:
    if part in gpus:
        return (part,)
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
    if first <= last < len(gpus):
        return gpus[first : last + 1]
    there = f"numbers 0 to {len(gpus) - 1}, or {', '.join(gpus)}" if gpus else "none"
    msg = f"There is no GPU {part} on this host."
    raise UsageError(msg, why=f"There are: {there}.", remedy="Name some of them: --gpus 0,2-3")


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


def try_lease(gpus: Sequence[str], count: int, holder: Holder | None = None) -> Lease | None:
    """A lease on `count` of these GPUs, all of them or none; None when too few are free.

    Args:
        gpus: To choose from.
        count: How many.
        holder: Who asks, for :func:`holders`.
    """
    held: dict[str, int] = {}
    for gpu in gpus:
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


def count_free(gpus: Iterable[str]) -> int:
    """How many of these GPUs nobody holds at this moment."""
    return sum(_is_free(gpu) for gpu in gpus)


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
