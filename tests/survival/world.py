"""A small world for runs to go wrong in: namespaces and locks of its own, small disks, and a Docker daemon of its own.

Nothing that is done in it reaches the host: to the runs of others its processes are a container's, its daemon has a
network namespace, and the kernel ends and unmounts all of it with the first process.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import docker

from allranks.agent.linux import die_with_parent

INSIDE: Final = "SURVIVAL_WORLD"
"""Set for whoever is in a world: its folder."""

HOOKS: Final = Path(__file__).parents[1] / "e2e" / "stand_ins"
"""A stand-in for NVIDIA's hook."""

_LOCKS: Final = "/run/lock"
_START_LIMIT: Final = 60.0
_DATA_MIB: Final = 2600

_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096


def why_no_world() -> str:
    """Why this host cannot have one; empty where it can."""
    if os.geteuid() != 0:
        return "only root can make namespaces and mount disks"
    done = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip()


def _unshare(*further: str) -> list[str]:
    return ["unshare", "--mount", "--pid", *further, "--fork", "--mount-proc", "--kill-child"]


def in_world(program: Sequence[str], folder: Path, *further: str) -> subprocess.Popen[str]:
    """Start a program of Python's in a world of its own; `further` are namespaces for unshare(1) to make, too.

    A shell is its first process: that one takes in orphans, which would stay zombies with Python.
    """
    shell = ["sh", "-c", '"$@"; exit $?', "sh"]
    command = [*_unshare(*further), *shell, sys.executable, *program]
    environment = {**os.environ, INSIDE: str(folder)}
    # Whoever is killed takes the world along.
    return subprocess.Popen(  # there are no threads yet
        command,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def enter_world() -> Path:
    """Have locks and, where the network is an own one, a loopback interface; returns the world's folder."""
    folder = Path(os.environ[INSIDE])
    mount_disk(Path(_LOCKS), 1, mode=0o1777)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False)  # noqa: S607
    return folder


def _libc_mount(source: bytes | None, target: Path, kind: bytes | None, flags: int, data: bytes | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), data) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(target))


def mount_disk(folder: Path, mib: int, mode: int = 0o755) -> None:
    """Mount a disk of some MiB, in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    _libc_mount(b"tmpfs", folder, b"tmpfs", 0, f"size={mib}m,mode={mode:o}".encode())


def unmount(folder: Path) -> None:
    """Unmount a disk, as soon as nobody uses it any more."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


def make_read_only(folder: Path) -> None:
    """Make a disk read-only; raises OSError while somebody has a file open for writing."""
    _libc_mount(None, folder, None, _MS_REMOUNT | _MS_RDONLY, None)


def make_writable(folder: Path) -> None:
    """Undo :func:`make_read_only`."""
    _libc_mount(None, folder, None, _MS_REMOUNT, None)


def fill(folder: Path) -> Path:
    """Take all that is free on a disk; the file that has it."""
    filler = folder / ".filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return filler


class HostDaemon:
    """The daemon of this host, which is not to be disturbed."""

    is_own = False

    def __init__(self) -> None:
        self.address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")

    def connect(self) -> docker.DockerClient:
        """A client."""
        return docker.DockerClient(base_url=self.address, version="auto", timeout=60)


class OwnDaemon(HostDaemon):
    """A daemon that is at nobody else's service.

    Args:
        folder: Where it keeps everything.
    """

    is_own = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.address = f"unix://{folder / 'docker.sock'}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start it, and wait until it answers."""
        (self.folder / "docker.pid").unlink(missing_ok=True)
        command = [
            *("dockerd", "--storage-driver", "overlay2", "--data-root", str(self.data)),
            *("--exec-root", str(self.folder / "exec"), "--pidfile", str(self.folder / "docker.pid")),
            *("--host", self.address, "--iptables=false", "--ip6tables=false", "--userland-proxy=false"),
        ]
        path = f"{HOOKS}{os.pathsep}{os.environ['PATH']}"
        with (self.folder / "log").open("ab") as log:
            # Containers may hold the log open: nobody waits for its end.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PATH": path})
        until(self._answers, _START_LIMIT, f"no answer of the daemon: see {self.folder / 'log'}")

    def _answers(self) -> bool:
        try:
            with closing(self.connect()) as client:
                return bool(client.ping())
        except (docker.errors.DockerException, OSError):
            return False

    def end(self, number: signal.Signals) -> None:
        """End it, in good order or not."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def load(self, images: Sequence[str], source: HostDaemon) -> None:
        """Have images of another daemon."""
        with closing(source.connect()) as theirs, closing(self.connect()) as ours:
            for image in images:
                ours.api.load_image(theirs.api.get_image(image))


@contextmanager
def own_daemon(folder: Path, images: Sequence[str]) -> Iterator[OwnDaemon]:
    """A daemon with some images of the host's, on a disk of its own."""
    mount_disk(folder, _DATA_MIB)
    daemon = OwnDaemon(folder)
    daemon.start()
    try:
        daemon.load(images, HostDaemon())
        yield daemon
    finally:
        daemon.end(signal.SIGTERM)
        shutil.copy(folder / "log", folder.with_suffix(".log"))
        unmount(folder)


def until(is_so, limit: float, otherwise: str, every: float = 0.05) -> None:
    """Wait for something of which nobody tells."""
    import time

    deadline = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(every)
