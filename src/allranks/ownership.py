"""Tracks which processes own running jobs on this host, and whether they are alive.

The owner of a run locks (flock(2)) the run's file. The kernel releases the lock when the process ends for any reason,
but not while it is suspended. Several processes may own a run together, but only one of them owns each job: a job is a
byte of the same file, locked by its owner (``F_OFD_SETLK``).
"""

import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from allranks.errors import UsageError

RUN_VARIABLE = "ALLRANKS_JOB_OF_RUN"
"""The environment variable with the id of the run that owns a process."""

HOST_VARIABLE = "ALLRANKS_JOB_OF_HOST"
"""The environment variable with the :func:`host_id` of the run that owns a process."""

HOST_LABEL = "allranks.host"
LOCKS_LABEL = "allranks.locks"
"""The label with the :func:`locks_id` of an object's owner."""

RUN_LABEL = "allranks.run"
GPUS_LABEL = "allranks.gpus"


def host_id() -> str:
    """An id of the machine, its boot, and the namespaces of this process, joined by periods.

    Processes with another id (after unshare(1), in a container of a CI runner, on another host of a shared daemon) have
    another lock folder, so a live owner would look dead to them. They do not remove objects with another id, except by
    :func:`is_of_earlier_boot`.
    """
    folder = lock_folder().stat()
    namespaces = f"{process_namespace(Path('/proc/self'))} {folder.st_dev}:{folder.st_ino}"
    machine = _text_of(Path("/etc/machine-id"), _BOOT_ID)
    # Hashed, since other hosts can read them.
    return ".".join(_digest(part).hex()[:16] for part in (machine, _text_of(_BOOT_ID), namespaces))


def locks_id() -> str:
    """An id of the lock folder: processes with the same id can check the same locks, even in different containers.

    Device numbers are unique among the mounted file systems of a boot, and are only reused when a file system is
    unmounted, so that its owners are dead.
    """
    folder = lock_folder().stat()
    text = f"{_text_of(_BOOT_ID)} {folder.st_dev}:{folder.st_ino}"
    return _digest(text).hex()[:16]


def _digest(text: str) -> bytes:
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB, and few reports need it

    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def is_of_earlier_boot(host: str, created: float) -> bool:
    """Whether an object is older than this boot of its host, so that its owner is certainly dead.

    Two machines may have the same id (a cloned disk), so a newer object may belong to the other machine.

    Args:
        host: The owner's :func:`host_id`.
        created: When the object was created, in seconds since the epoch.
    """
    machine, _, rest = host.partition(".")
    boot, _, _ = rest.partition(".")
    own_machine, own_boot, _ = host_id().split(".")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return machine == own_machine and bool(boot) and boot != own_boot and created < booted


def process_namespace(process: Path) -> Path:
    """The pid namespace of a process, given its folder in ``/proc``.

    Raises:
        OSError: It has ended, or this user may not inspect it.
    """
    return (process / "ns" / "pid").readlink()


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _text_of(*paths: Path) -> str:
    """The text of the first file that is not empty, or else the host's name."""
    for path in paths:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text:
            return text
    return socket.gethostname()


LOCKS_VARIABLE = "ALLRANKS_LOCKS"
"""The environment variable for another lock folder."""


def lock_folder() -> Path:
    """The lock folder of the host, which all users share, or that of :data:`LOCKS_VARIABLE`.

    Users that share GPUs must have the same folder, so it depends neither on TMPDIR nor on the user's permissions. Runs
    with different folders do not clean up each other's objects, and could use the same GPU.
    """
    if configured := os.environ.get(LOCKS_VARIABLE):
        return _configured_folder(Path(configured).absolute())
    shared = Path("/run/lock")
    base = shared if shared.is_dir() and shared.stat().st_mode & stat.S_IWOTH else Path("/tmp")  # noqa: S108
    folder = base / "allranks"
    if not folder.exists():
        folder.mkdir(exist_ok=True)
        folder.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO | stat.S_ISVTX)
    return folder


def _configured_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as error:
        problem = str(error)
    if problem:
        msg = f"The lock folder cannot be used: {LOCKS_VARIABLE}={folder}."
        raise UsageError(msg, why=problem, remedy=f"Use another folder, or unset {LOCKS_VARIABLE}.")
    return folder


def open_lock(path: Path | str) -> int:
    """Open or create a lock file that any user of the host may lock.

    In a sticky folder, Linux does not open another user's file with ``O_CREAT``, even for root
    (``fs.protected_regular``), so opening and creating are separate steps.
    """
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            os.fchmod(descriptor, 0o666)
            return descriptor


def _run_lock(run_id: str) -> Path:
    return lock_folder() / f"run-{run_id}"


@contextmanager
def own_run(run_id: str) -> Iterator["OwnedRun"]:
    """Own a run during the context; several processes may own a run together."""
    with shared_lock(_run_lock(run_id)) as descriptor:
        yield OwnedRun(run_id, descriptor)


_JOB_LOCK = struct.Struct("hhqqi0q")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""


@dataclass(frozen=True)
class OwnedRun:
    """A run that this process owns, possibly together with others."""

    run_id: str
    descriptor: int  # its lock file, which is not removed while the run has owners

    def try_own(self, job_id: str) -> bool:
        """Own a job until the context of the run ends; return False if another process owns it."""
        try:
            self._lock(job_id, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def disown(self, job_id: str) -> None:
        """Release a job."""
        self._lock(job_id, fcntl.F_OFD_SETLK, fcntl.F_UNLCK)

    def wait_for(self, job_id: str) -> None:
        """Wait until no other process owns a job."""
        self._lock(job_id, fcntl.F_OFD_SETLKW, fcntl.F_WRLCK)
        self.disown(job_id)

    def _lock(self, job_id: str, operation: int, kind: int) -> None:
        offset = int.from_bytes(_digest(job_id)[:7], "big")  # may be beyond the end of the file
        fcntl.fcntl(self.descriptor, operation, _JOB_LOCK.pack(kind, os.SEEK_SET, offset, 1, 0))


@contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Wait for a shared lock on a file, and yield the file's descriptor; the last holder removes the file."""
    descriptor = _locked(path, fcntl.LOCK_SH)
    try:
        yield descriptor
    finally:
        _remove_if_last(path, descriptor)
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[bool]:
    """Try to get an exclusive lock on a file; yield False if another process has a lock."""
    try:
        descriptor = _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        _remove_if_last(path, descriptor)
        os.close(descriptor)


def _locked(path: Path, operation: int) -> int:
    """Lock a file; if its last holder removed it meanwhile, lock the new file at the same path.

    Raises:
        BlockingIOError: Another process has a lock, and the operation does not wait.
    """
    while True:
        descriptor = open_lock(path)
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            os.close(descriptor)
            raise
        if is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _remove_if_last(path: Path, descriptor: int) -> None:
    """Remove a lock file if no other process has a lock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if is_at(path, descriptor):
        with suppress(PermissionError):  # another user created it; it can still be locked
            path.unlink()


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still at a path: another process may have removed or replaced it."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def remove_dead_locks() -> None:
    """Remove the lock files of runs whose owners were killed."""
    for path in lock_folder().glob("run-*"):
        # Ignore files that have been removed, and those of other users.
        with suppress(FileNotFoundError, PermissionError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _remove_if_last(path, descriptor)
            finally:
                os.close(descriptor)


def is_dead(run_id: str) -> bool:
    """Whether no process of this host owns the run."""
    return not is_held(_run_lock(run_id))


def is_held(path: Path) -> bool:
    """Whether a process of this host has a lock on a file, which may not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def image_lock(reference: str) -> Path:
    """The lock of an image or a layer: shared while it is used, exclusive for its removal."""
    return lock_folder() / f"image-{quote(reference, safe='')}"


@dataclass(frozen=True)
class Owner:
    """The owner of a process or a folder."""

    run_id: str
    host: str  # the owner's :func:`host_id`; empty if unknown

    @property
    def is_here(self) -> bool:
        """Whether this process can check the owner's lock."""
        return self.host == host_id()

    @property
    def is_dead(self) -> bool:
        """Whether the owner is certainly dead."""
        return self.is_here and is_dead(self.run_id)
