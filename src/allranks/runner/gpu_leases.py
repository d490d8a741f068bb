"""Leases on GPUs, which exclude other runs on this host, the queue for them, and the GPUs that a run may lease.

Without the queue, a run that needs all GPUs at once would wait for as long as others take single ones as they come
free. Each waiting run has a queue entry: a file in the host's folder of locks, named by the time, locked (flock(2)) for
as long as its owner lives, and touched at each poll. No run takes a GPU that an earlier entry waits for. A waiting run
holds no GPU, so two of them never wait for each other. The entry of a dead run is not locked, and that of a stopped one
is not touched: neither holds up other runs.

A lease is a lock (flock(2)) on one file for each GPU, in one folder for the whole host. It lasts as long as any
process holds its descriptor: the orchestrator, and every process of a job on the process engine. The file
names the current or last holder.
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

_QUEUE_PREFIX: Final = "line-"

PATIENCE: Final = 5.0
"""Seconds for which a queue entry counts that its owner does not touch: twenty polls of a waiting run."""


@dataclass(frozen=True, eq=False)
class QueueEntry:
    """A place in the queue, for as long as the process lives, or until it leaves."""

    path: Path  # the entry's file; names sort in the order of the queue
    descriptor: int

    def touch(self) -> None:
        """Show that its owner still waits."""
        _touch(self.descriptor)

    def leave(self) -> None:
        """Give the place up."""
        with suppress(OSError):
            self.path.unlink()
        os.close(self.descriptor)


def stand_in_line(gpus: Sequence[str]) -> QueueEntry:
    """Take a place at the end of the queue, to wait for some of these GPUs."""
    while True:
        path = lock_folder() / f"{_QUEUE_PREFIX}{time.monotonic_ns():020}-{os.getpid()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.fchmod(descriptor, 0o666)
        ticket = QueueEntry(path, descriptor)
        # Another run may have found it before it was locked, and taken it for a dead run's.
        if _locks(descriptor, fcntl.LOCK_EX) and is_at(path, descriptor):
            _touch(descriptor)
            os.write(descriptor, json.dumps({"gpus": list(gpus)}).encode())
            _touch(descriptor)
            return ticket
        ticket.leave()


def claimed(ticket: QueueEntry | None = None) -> frozenset[str]:
    """The GPUs that runs ahead of us in the queue wait for; all are ahead of a run without a queue entry."""
    folder = lock_folder()
    # In one call: an interrupt in the middle of a walk would leave the folder open.
    names = (name for name in os.listdir(folder) if name.startswith(_QUEUE_PREFIX))  # noqa: PTH208
    before = (name for name in names if ticket is None or name < ticket.path.name)
    return frozenset(gpu for name in before for gpu in _wanted(folder / name))


def _wanted(path: Path) -> Iterator[str]:
    """The GPUs that the owner of a queue entry waits for; none if it is dead or stopped."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # it has just left
    try:
        if _locks(descriptor, fcntl.LOCK_SH):
            with suppress(OSError):  # another user's
                path.unlink()
        elif time.monotonic_ns() - os.fstat(descriptor).st_mtime_ns < PATIENCE * 1e9:
            yield from _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Iterator[str]:
    with suppress(ValueError, LookupError, TypeError):  # it is being written
        yield from map(str, json.loads(os.pread(descriptor, 1 << 16, 0))["gpus"])


def _locks(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _touch(descriptor: int) -> None:
    # The host's clock may be set during a wait. The monotonic one never is, and all processes share it.
    now = time.monotonic_ns()
    os.utime(descriptor, ns=(now, now))


_LEASE_PREFIX = "gpu-"


@dataclass(frozen=True, kw_only=True)
class Lease(AbstractContextManager["Lease"]):
    """A job's exclusive hold on some GPUs."""

    gpus: tuple[str, ...] = ()  # their UUIDs
    descriptors: tuple[int, ...] = ()  # the locks; a process that inherits one keeps that GPU

    def __exit__(self, *_: object) -> None:
        """Give the GPUs back, as far as this process holds them."""
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
    gpus: Sequence[str], count: int, holder: Holder | None = None, ticket: QueueEntry | None = None
) -> Lease | None:
    """A lease on `count` of these GPUs, all of them or none; None if too few are free, or others are ahead of us."""
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
    """The holder of each of these GPUs, and of each other that a job of this host holds; None if it is free."""
    signed = dict(_signed(path) for path in lock_folder().glob(f"{_LEASE_PREFIX}*"))
    others = [gpu for gpu in signed if gpu not in gpus and not _is_free(gpu)]
    return {gpu: None if _is_free(gpu) else signed.get(gpu, Holder()) for gpu in dict.fromkeys((*gpus, *others))}


def _signed(path: Path) -> tuple[str, Holder]:
    """The GPU and the holder in a lock file; only the file's name for the GPU while it is being written."""
    try:
        said = json.loads(path.read_bytes())
        return str(said.pop("gpu")), Holder(**said)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return unquote(path.name.removeprefix(_LEASE_PREFIX)), Holder()


def count_free(gpus: Iterable[str], ticket: QueueEntry | None = None) -> int:
    """How many of these GPUs are free at this moment, without those that runs ahead of us wait for."""
    return sum(_is_free(gpu) for gpu in _not_claimed(gpus, ticket))


def _not_claimed(gpus: Iterable[str], ticket: QueueEntry | None) -> Iterable[str]:
    wanted = tuple(gpus)
    others = claimed(ticket) if wanted else frozenset()
    return [gpu for gpu in wanted if gpu not in others]


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
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


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
        """The GPUs that are not known to be unhealthy."""
        return tuple(gpu for gpu in self._gpus if gpu not in self._unhealthy)

    def unhealthy_among(self, gpus: Iterable[str]) -> list[str]:
        """Those of the GPUs that are leased no more, sorted."""
        return sorted(self._unhealthy.intersection(gpus))

    def count_free(self) -> int:
        """How many GPUs no run holds at this moment, nor waits for ahead of this run."""
        return count_free(self.healthy, self._queue_entry)

    def lease(self, count: int, job_id: str) -> Lease | None:
        """Lease GPUs to a job, all of them or none; None if too few are free or another run is ahead in the queue."""
        holder = Holder(run_id=self._run_id, job_id=job_id, pid=os.getpid(), since=time.time())
        lease = try_lease(self.healthy, count, holder, self._queue_entry)
        if lease is not None and self.unhealthy_among(lease.gpus):
            with lease:  # its previous job reported it unhealthy and released it after `healthy` was read
                return None
        if lease is not None and lease.gpus and job_id == self._queued_job:
            self.leave_queue()  # runs that joined meanwhile are ahead of this run's next job
        return lease

    def wait_in_queue(self, job_id: str) -> None:
        """Hold a place in the host-wide queue for a job; call it at each poll, or the place expires."""
        self._queued_job = job_id
        if self._queue_entry is None:
            self._queue_entry = stand_in_line(self.healthy)
        self._queue_entry.touch()

    def leave_queue(self) -> None:
        """Give up the place in the queue, if there is one."""
        if self._queue_entry is not None:
            self._queue_entry.leave()
            self._queue_entry = None

    def report_unhealthy(self, gpus: Iterable[str]) -> None:
        """Lease these GPUs no more. Call it from any thread, before the lease that showed it ends."""
        self._unhealthy.update(gpus)

    def report_checked(self, gpus: Iterable[str], environment: JobEnvironment) -> None:
        """Record that these GPUs have computed with this Python: later jobs need not check them. From any thread."""
        self._checked.update((gpu, environment) for gpu in gpus)

    def forget_checks(self, gpus: Iterable[str]) -> None:
        """Have the next job with one of these GPUs check it again. From any thread."""
        forgotten = frozenset(gpus)
        self._checked = {(gpu, environment) for gpu, environment in self._checked if gpu not in forgotten}

    def unchecked(self, gpus: Iterable[str], environment: JobEnvironment) -> list[str]:
        """Those of the GPUs that have not been seen to compute with this Python."""
        return [gpu for gpu in gpus if (gpu, environment) not in self._checked]
