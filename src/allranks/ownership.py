"""Ownership of running jobs on this host: live owners, told apart from dead ones.

The owner of a run holds a lock (flock(2)) on the run's file for as long as it lives; the kernel releases
it when the process ends, however it ends. A suspended owner still holds it. Several processes may own a run together,
but no two of them one of its jobs: each job is a byte of the same file, locked by its owner (``F_OFD_SETLK``).
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
"""Environment variable that every process of a run carries."""

HOST_VARIABLE = "ALLRANKS_JOB_OF_HOST"
"""Environment variable of processes on this host: the :func:`host_id` of their run's owner."""

HOST_LABEL = "allranks.host"
LOCKS_LABEL = "allranks.locks"
"""Label with the :func:`locks_id` of the folder in which an object's run is locked."""

RUN_LABEL = "allranks.run"
GPUS_LABEL = "allranks.gpus"


def host_id() -> str:
    """The place from which an owner's lock is visible: this machine, its boot, and the name spaces of this process.

    A lock is visible only to processes with the same folder of locks: in another mount namespace (unshare(1), a
    container of a CI runner, another host of a shared daemon) a live owner looks dead. So the id has these three
    parts, joined by full stops, and objects with another id are left alone; see :func:`is_of_earlier_boot`.
    """
    folder = lock_folder().stat()
    spaces = f"{process_namespace(Path('/proc/self'))} {folder.st_dev}:{folder.st_ino}"
    machine = _text_of(Path("/etc/machine-id"), _BOOT_ID)
    # Digests reveal nothing about their texts.
    return ".".join(_digest(part).hex()[:16] for part in (machine, _text_of(_BOOT_ID), spaces))


def locks_id() -> str:
    """The identity of this process's folder of locks: whoever has the same one sees the same locks, in any container.

    No two mounted file systems of one boot share a device number. A number is used again only after the file system is
    gone, and its owners with it.
    """
    folder = lock_folder().stat()
    text = f"{_text_of(_BOOT_ID)} {folder.st_dev}:{folder.st_ino}"
    return _digest(text).hex()[:16]


def _digest(text: str) -> bytes:
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB, and few reports need it

    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def is_of_earlier_boot(host: str, made: float) -> bool:
    """True if an owner's object is older than this boot of its host, so that the owner is dead wherever it was.

    Two machines may have one id (a cloned disk), so an object made since this boot may belong to the other machine.

    Args:
        host: The owner's :func:`host_id`.
        made: When the object was made, in seconds since the epoch.
    """
    machine, _, rest = host.partition(".")
    boot, _, _ = rest.partition(".")
    own_machine, own_boot, _ = host_id().split(".")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return machine == own_machine and bool(boot) and boot != own_boot and made < booted


def process_namespace(process: Path) -> Path:
    """The process namespace of a process, given its folder in ``/proc`` (pid_namespaces(7)).

    Raises:
        OSError: It has ended, or this user may not look at it.
    """
    return (process / "ns" / "pid").readlink()


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _text_of(*paths: Path) -> str:
    """The text of the first of these files that has any; else the host's name."""
    for path in paths:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text:
            return text
    return socket.gethostname()


LOCKS_VARIABLE = "ALLRANKS_LOCKS"
"""Environment variable that names another folder of locks than the host's."""


def lock_folder() -> Path:
    """The host's one folder of locks, shared by all its users; or the one that :data:`LOCKS_VARIABLE` names.

    Users and sessions that share GPUs must use the same one: it depends neither on TMPDIR nor on what this user may
    write. Runs with different folders leave each other alone (see :func:`host_id`), and may use one GPU at a time.
    """
    if own := os.environ.get(LOCKS_VARIABLE):
        return _own_folder(Path(own).absolute())
    shared = Path("/run/lock")
    base = shared if shared.is_dir() and shared.stat().st_mode & stat.S_IWOTH else Path("/tmp")  # noqa: S108
    folder = base / "allranks"
    if not folder.exists():
        folder.mkdir(exist_ok=True)
        folder.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO | stat.S_ISVTX)
    return folder


def _own_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trouble = "" if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as error:
        trouble = str(error)
    if trouble:
        msg = f"The folder of locks cannot be used: {LOCKS_VARIABLE}={folder}."
        raise UsageError(msg, why=trouble, remedy=f"Name another folder, or unset {LOCKS_VARIABLE}.")
    return folder


def open_lock(path: Path | str) -> int:
    """A descriptor of a lock file that any user of the host may lock.

    Linux refuses to open another user's file in a folder like this one with ``O_CREAT`` alone, even for root
    (``fs.protected_regular``), so opening and creating are two steps.
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
    """Own a run for as long as the context lasts; several processes may own one run together."""
    with shared_lock(_run_lock(run_id)) as descriptor:
        yield OwnedRun(run_id, descriptor)


_JOB_LOCK = struct.Struct("hhqqi0q")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid."""


@dataclass(frozen=True)
class OwnedRun:
    """A run that this process owns, perhaps with others."""

    run_id: str
    descriptor: int  # its file, which is not removed while the run is owned, so all owners lock bytes of the same one

    def try_own(self, job_id: str) -> bool:
        """Own a job as long as the run; False if another process owns it."""
        try:
            self._lock(job_id, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def disown(self, job_id: str) -> None:
        """Let other processes own a job."""
        self._lock(job_id, fcntl.F_OFD_SETLK, fcntl.F_UNLCK)

    def wait_for(self, job_id: str) -> None:
        """Wait until no other process owns a job."""
        self._lock(job_id, fcntl.F_OFD_SETLKW, fcntl.F_WRLCK)
        self.disown(job_id)

    def _lock(self, job_id: str, operation: int, kind: int) -> None:
        place = int.from_bytes(_digest(job_id)[:7], "big")  # the byte need not exist
        fcntl.fcntl(self.descriptor, operation, _JOB_LOCK.pack(kind, os.SEEK_SET, place, 1, 0))


@contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Hold the lock of a file together with others, once no process holds it alone; the last one removes the file.

    Yields:
        A descriptor of the file.
    """
    descriptor = _locked(path, fcntl.LOCK_SH)
    try:
        yield descriptor
    finally:
        _remove_if_last(path, descriptor)
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[bool]:
    """Hold the lock of a file alone; False, and no lock, if another process holds it."""
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
    """A lock on the file that `path` names now: a last owner may just have removed the one we opened.

    Raises:
        BlockingIOError: Another process holds it, and the operation does not wait.
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
    """Remove a lock file unless another process holds it: only a process that holds it alone may remove it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if is_at(path, descriptor):
        with suppress(PermissionError):  # another user has made it; later processes can lock it all the same
            path.unlink()


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one that a path names now: another process may have removed or replaced it."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def forget_dead_runs() -> None:
    """Remove the files of runs whose owners were killed."""
    for path in lock_folder().glob("run-*"):
        # Files that are gone by now, or another user's, are ignored.
        with suppress(FileNotFoundError, PermissionError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _remove_if_last(path, descriptor)
            finally:
                os.close(descriptor)


def is_dead(run_id: str) -> bool:
    """Whether no process of this host owns the run any more."""
    return not is_held(_run_lock(run_id))


def is_held(path: Path) -> bool:
    """Whether any process of this host holds the lock of a file, which need not exist."""
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
    """The lock of an image, or of a layer of one: shared by all that need it, held alone for its removal."""
    return lock_folder() / f"image-{quote(reference, safe='')}"


@dataclass(frozen=True)
class Owner:
    """The owner of a process or a folder, as it is written on it."""

    run_id: str
    host: str  # the owner's :func:`host_id`; empty if it is unknown

    @property
    def is_here(self) -> bool:
        """Whether its lock is visible from here: else whether it lives is unknown."""
        return self.host == host_id()

    @property
    def is_dead(self) -> bool:
        """Whether it is certain to be dead."""
        return self.is_here and is_dead(self.run_id)
