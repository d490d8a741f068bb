"""Who owns what is running on this host, told apart from who is dead.

The owner of a run holds a lock (flock(2)) on the run's file for as long as it lives; the kernel lets go of
it when the process ends, however it ends. A suspended owner still holds it.
"""

import fcntl
import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RUN_VARIABLE = "ALLRANKS_JOB_OF_RUN"
"""Environment variable that every process of a run carries."""

HOST_LABEL = "allranks.host"
RUN_LABEL = "allranks.run"


def host_id() -> str:
    """A name for this host that survives restarts and says nothing about it."""
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text:
            return hashlib.sha256(text.encode()).hexdigest()[:16]
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:16]


def lock_folder() -> Path:
    """The host's one folder of locks, shared by all its users."""
    base = Path("/run/lock")
    if not os.access(base, os.W_OK):
        base = Path(tempfile.gettempdir())
    folder = base / "allranks"
    if not folder.exists():
        folder.mkdir(exist_ok=True)
        folder.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO | stat.S_ISVTX)
    return folder


def open_lock(path: Path | str) -> int:
    """A descriptor of a lock file that any user of the host may lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    if os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, 0o666)
    return descriptor


def _run_lock(run_id: str) -> Path:
    return lock_folder() / f"run-{run_id}"


@contextmanager
def own_run(run_id: str) -> Iterator[None]:
    """Own a run for as long as the context lasts; several processes may own one run together."""
    path = _run_lock(run_id)
    descriptor = _share(path)
    try:
        yield
    finally:
        _remove_if_last(path, descriptor)
        os.close(descriptor)


def _share(path: Path) -> int:
    """A shared lock on the file that `path` names now: a last owner may just have removed the one we opened."""
    while True:
        descriptor = open_lock(path)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)


def _remove_if_last(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    path.unlink(missing_ok=True)


def is_dead(run_id: str) -> bool:
    """Whether no process of this host owns the run any more."""
    try:
        descriptor = os.open(_run_lock(run_id), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
