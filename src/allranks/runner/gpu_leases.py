"""GPU leases, the host-wide queue for them, and the GPUs that a run may lease.

A lease is a lock (flock(2)) on one file for each GPU, in one folder for the whole host. It lasts as long as any process
holds its descriptor: the orchestrator, and every process of a job on the process engine. The file names the current or
last holder.

The queue prevents starvation: a run that needs all GPUs at once would otherwise wait while others lease single ones.
Each waiting run has a queue entry: a file in the same folder, named by the time, locked as long as its owner lives, and
touched at each poll. No run leases a GPU that an earlier entry waits for. A waiting run holds no GPU, so two of them
never deadlock. Two kinds of entries are ignored: a dead run does not lock its entry, and a suspended run does not touch
its entry.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from allranks.engines.base import JobEnvironment
from allranks.ownership import is_at, lock_folder, open_lock

_QUEUE_PREFIX: Final = "queue-"

ENTRY_TIMEOUT: Final = 5.0
"""Seconds after its last touch until a queue entry is ignored: twenty polls of a waiting run."""


@dataclass(frozen=True, eq=False)
class QueueEntry:
    """A position in the queue, until its process leaves the queue or ends."""

    path: Path  # names sort in the order of the queue
    descriptor: int

    def touch(self) -> None:
        """Show that the owner of the entry is still waiting."""
        # The host's clock may be changed during a wait. The monotonic clock never is, and all processes share it.
        now = time.monotonic()
        os.utime(self.descriptor, (now, now))

    def leave(self) -> None:
        """Leave the queue."""
        with suppress(OSError):
            self.path.unlink()
        os.close(self.descriptor)


def enqueue(gpus: Sequence[str]) -> QueueEntry:
    """Join the queue, to wait for some of these GPUs."""
    while True:
        path = lock_folder() / f"{_QUEUE_PREFIX}{time.monotonic_ns():020}-{os.getpid()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        os.fchmod(descriptor, 0o666)
        entry = QueueEntry(path, descriptor)
        # Before it was locked, another run may have removed it as the entry of a dead run.
        if _try_flock(descriptor, fcntl.LOCK_EX) and is_at(path, descriptor):
            entry.touch()
            os.write(descriptor, json.dumps({"gpus": list(gpus)}).encode())
            entry.touch()
            return entry
        entry.leave()


def claimed(entry: QueueEntry | None = None) -> frozenset[str]:
    """The GPUs that the queue entries before this one wait for; for None, the GPUs of all entries."""
    folder = lock_folder()
    # Not Path.iterdir: an interrupt would leave its descriptor open.
    names = (name for name in os.listdir(folder) if name.startswith(_QUEUE_PREFIX))  # noqa: PTH208
    earlier = (name for name in names if entry is None or name < entry.path.name)
    return frozenset(gpu for name in earlier for gpu in _requested(folder / name))


def _requested(path: Path) -> Iterator[str]:
    """The GPUs that the owner of a queue entry waits for; none if it is dead or suspended."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # it has just left the queue
    try:
        if _try_flock(descriptor, fcntl.LOCK_SH):
            with suppress(OSError):  # another user's file
                path.unlink()
        elif time.monotonic() - os.fstat(descriptor).st_mtime < ENTRY_TIMEOUT:
            with suppress(OSError, ValueError, LookupError, TypeError):  # the entry is being written or removed
                yield from map(str, json.loads(path.read_bytes())["gpus"])
    finally:
        os.close(descriptor)


def _try_flock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_LEASE_PREFIX = "gpu-"


@dataclass(frozen=True, kw_only=True)
class Lease(AbstractContextManager["Lease"]):
    """A job's exclusive use of some GPUs."""

    gpus: tuple[str, ...] = ()  # their UUIDs
    descriptors: tuple[int, ...] = ()  # the locks; a process that inherits one keeps that GPU leased

    def __exit__(self, *_: object) -> None:
        """Release the locks of this process."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The holder of a lease."""

    run_id: str = ""
    job_id: str = ""
    pid: int = 0
    since: float = 0.0  # seconds since the epoch


def try_lease(
    gpus: Sequence[str], count: int, holder: Holder | None = None, entry: QueueEntry | None = None
) -> Lease | None:
    """Lease `count` of those GPUs that earlier queue entries do not claim; None if too few of them are free."""
    held: dict[str, int] = {}
    for gpu in _unclaimed(gpus, entry) if count else ():
        if len(held) == count:
            break
        descriptor = _try_lock(gpu)
        if descriptor is not None:
            held[gpu] = descriptor
    lease = Lease(gpus=tuple(held), descriptors=tuple(held.values()))
    if len(held) == count:
        for gpu, descriptor in held.items():
            _write_holder(descriptor, gpu, holder or Holder())
        return lease
    with lease:
        return None


def _write_holder(descriptor: int, gpu: str, holder: Holder) -> None:
    with suppress(OSError):  # a full disk: the lock is valid without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"gpu": gpu, **asdict(holder)}).encode(), 0)


def holders(gpus: Iterable[str]) -> dict[str, Holder | None]:
    """The holders of these GPUs, and of all others that are leased on this host; None for a free GPU."""
    known = dict(_read_holder(path) for path in lock_folder().glob(f"{_LEASE_PREFIX}*"))
    others = [gpu for gpu in known if gpu not in gpus and not _is_free(gpu)]
    return {gpu: None if _is_free(gpu) else known.get(gpu, Holder()) for gpu in dict.fromkeys((*gpus, *others))}


def _read_holder(path: Path) -> tuple[str, Holder]:
    """The GPU and the holder in a lock file; an unknown holder while the file is being written."""
    try:
        fields = json.loads(path.read_bytes())
        return str(fields.pop("gpu")), Holder(**fields)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return unquote(path.name.removeprefix(_LEASE_PREFIX)), Holder()


def count_free(gpus: Iterable[str], entry: QueueEntry | None = None) -> int:
    """How many GPUs are free, out of those that earlier queue entries do not claim."""
    return sum(_is_free(gpu) for gpu in _unclaimed(gpus, entry))


def _unclaimed(gpus: Iterable[str], entry: QueueEntry | None) -> Iterable[str]:
    gpus = tuple(gpus)
    others = claimed(entry) if gpus else frozenset()
    return [gpu for gpu in gpus if gpu not in others]


def _is_free(gpu: str) -> bool:
    descriptor = _try_lock(gpu)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def lease_file(gpu: str) -> Path:
    """The file whose lock is the lease of a GPU."""
    return lock_folder() / f"{_LEASE_PREFIX}{quote(gpu, safe='', errors='surrogateescape')}"


def _try_lock(gpu: str) -> int | None:
    descriptor = open_lock(lease_file(gpu))
    if _try_flock(descriptor, fcntl.LOCK_EX):
        return descriptor
    os.close(descriptor)
    return None


class GpuPool:
    """Leases GPUs to the jobs of one run."""

    def __init__(self, gpus: tuple[str, ...], run_id: str) -> None:
        self._gpus = gpus
        self._run_id = run_id
        self._unhealthy: set[str] = set()
        self._checked: set[tuple[str, JobEnvironment]] = set()
        self._queue_entry: QueueEntry | None = None
        self._queued_job = ""

    @property
    def healthy(self) -> tuple[str, ...]:
        """The GPUs without a known problem."""
        return tuple(gpu for gpu in self._gpus if gpu not in self._unhealthy)

    def unhealthy_among(self, gpus: Iterable[str]) -> list[str]:
        """The unhealthy ones of these GPUs, sorted."""
        return sorted(self._unhealthy.intersection(gpus))

    def count_free(self) -> int:
        """How many GPUs this run could lease now."""
        return count_free(self.healthy, self._queue_entry)

    def lease(self, count: int, job_id: str) -> Lease | None:
        """Lease GPUs to a job; None if too few are free, or another run is ahead in the queue."""
        holder = Holder(run_id=self._run_id, job_id=job_id, pid=os.getpid(), since=time.time())
        lease = try_lease(self.healthy, count, holder, self._queue_entry)
        if lease is not None and self.unhealthy_among(lease.gpus):
            with lease:  # after `healthy` was read, another job reported one as unhealthy and released it
                return None
        if lease is not None and lease.gpus and job_id == self._queued_job:
            self.leave_queue()  # runs that joined later come before this run's next job
        return lease

    def wait_in_queue(self, job_id: str) -> None:
        """Keep a position in the host-wide queue for a job. Call it at each poll, or the entry expires."""
        self._queued_job = job_id
        if self._queue_entry is None:
            self._queue_entry = enqueue(self.healthy)
        self._queue_entry.touch()

    def leave_queue(self) -> None:
        """Leave the queue, if this run is in it."""
        if self._queue_entry is not None:
            self._queue_entry.leave()
            self._queue_entry = None

    def report_unhealthy(self, gpus: Iterable[str]) -> None:
        """Stop leasing these GPUs. Call it before their lease ends. The `report` methods are thread-safe."""
        self._unhealthy.update(gpus)

    def report_checked(self, gpus: Iterable[str], environment: JobEnvironment) -> None:
        """Record that these GPUs passed a check in this environment: later jobs need not check them."""
        self._checked.update((gpu, environment) for gpu in gpus)

    def forget_checks(self, gpus: Iterable[str]) -> None:
        """Make the next job on each of these GPUs check it."""
        forgotten = frozenset(gpus)
        self._checked = {(gpu, environment) for gpu, environment in self._checked if gpu not in forgotten}

    def unchecked(self, gpus: Iterable[str], environment: JobEnvironment) -> list[str]:
        """The GPUs that have not passed a check in this environment."""
        return [gpu for gpu in gpus if (gpu, environment) not in self._checked]
