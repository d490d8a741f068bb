"""The engine ``docker``, which runs jobs in containers, from images that allranks builds."""

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from allranks.engines.base import (
    Engine,
    Finding,
    JobEnvironment,
    JobSpec,
    Leftovers,
    MakeEnvironment,
    Progress,
    RunningJob,
)
from allranks.engines.gpus import Inventory
from allranks.engines.package import bytecode_of, package_files
from allranks.errors import EngineAbsentError, EngineError
from allranks.matrix.model import Image, Matrix
from allranks.ownership import LOCKS_VARIABLE, lock_folder
from allranks.user_cache import cache_folder

if TYPE_CHECKING:
    from docker import DockerClient

    from allranks.engines.base import FileCopy
    from allranks.engines.docker_objects import DaemonObjects

_SOCKET = Path("/var/run/docker.sock")

_GIB: Final = 1 << 30
_SPACE_FOR_IMAGES: Final = 4 * _GIB
_SPACE_FOR_CUDA: Final = 24 * _GIB
"""An image of torch with CUDA takes 6 GB, and its build up to 24 GB (``allranks.images.builders``)."""

_MAX_CLOCK_SKEW: Final = 5.0
_CDI_SINCE: Final = 25
_INSTALL_TOOLKIT: Final = (
    "Install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker`, and restart Docker."
)


class DockerEngine(Engine):
    """Runs each node of a job in a container.

    Args:
        client: The daemon.
        package: The files of allranks that agents need, with targets relative to a folder on their path.
    """

    name = "docker"
    answer = "a Docker daemon answers"

    def __init__(self, client: "DockerClient", package: "tuple[FileCopy, ...]" = ()) -> None:
        self.image_daemon: DockerClient = client
        self._package = package

    @classmethod
    def detect(cls, *, is_requested: bool = True) -> Self:
        if not is_requested and not _has_daemon():
            msg = "This host has no Docker daemon."
            raise EngineAbsentError(msg, why=f"no Docker daemon: there is no {_SOCKET}")
        try:
            # Importing the SDK takes 0.1 s, which hosts without a daemon save.
            from allranks.images.docker_client import connect  # noqa: PLC0415
        except ImportError as error:
            msg = "The Docker SDK for Python is not installed."
            remedy = "Install it (pip install docker), or use --engine process."
            raise EngineError(msg, why=str(error), remedy=remedy) from error
        return cls(connect())

    def prepare(self, matrix: Matrix, progress: Progress, uses: ExitStack | None) -> MakeEnvironment:
        from allranks.images.built_image import ensure_image  # noqa: PLC0415 - see detect
        from allranks.images.project import project_files  # noqa: PLC0415

        def make(image: Image) -> JobEnvironment:
            built = ensure_image(image, root=matrix.root, client=self.image_daemon, progress=progress, uses=uses)
            project = (project_files(image, matrix.root, progress),) if image.mode == "copy" else ()
            return JobEnvironment(image=built.reference, python_path=project)

        package = package_files()
        self._package = (*package, *bytecode_of(package, cache_folder() / "bytecode"))
        return make

    @cached_property
    def _objects(self) -> "DaemonObjects":
        from allranks.engines.docker_objects import DaemonObjects  # noqa: PLC0415 - see detect

        return DaemonObjects(self.image_daemon)

    def start(self, spec: JobSpec, _held: Sequence[int] = ()) -> AbstractContextManager[RunningJob]:
        return self._objects.start(spec, self._package)

    def clean_up(self, *, is_dry_run: bool = False) -> Leftovers:
        return self._objects.clean_up(is_dry_run=is_dry_run)

    def evict(self, gpus: Sequence[str]) -> None:
        self._objects.evict(gpus)

    def check_leases(self) -> None:
        """Check that this process can access the locks of all runs on the daemon's host.

        A lock folder that is a mount point, or that the user set, is assumed to be shared with the other runs.
        """
        from allranks.images.docker_client import is_daemon_local  # noqa: PLC0415 - see detect

        folder = lock_folder()
        if os.environ.get(LOCKS_VARIABLE) or folder.is_mount() or is_daemon_local():
            return
        msg = "No GPU can be leased: this process cannot access the locks of the Docker daemon's host."
        why = "allranks runs in a container or on another host, so other runs could use a GPU that it has leased."
        remedy = (
            "Mount the host's /run/lock/allranks (or /tmp/allranks, if only root may write its /run/lock) at "
            f"{folder} of this container, or set {LOCKS_VARIABLE} to a folder that all runs on these GPUs share."
        )
        raise EngineError(msg, why=why, remedy=remedy)

    def close(self) -> None:
        self.image_daemon.close()

    def capacity(self) -> tuple[int, int]:
        from allranks.engines.docker_job import as_engine_error  # noqa: PLC0415 - see detect

        with as_engine_error("The daemon does not report the CPUs and memory of its host."):
            info = self.image_daemon.info()
        return int(info["NCPU"]), int(info["MemTotal"]) >> 20

    def check(self, inventory: Inventory) -> Iterator[Finding]:
        from allranks.images.builders import images_folder  # noqa: PLC0415 - see detect

        try:
            info: dict[str, Any] = self.image_daemon.info()
        except Exception as error:  # noqa: BLE001 - of the SDK, requests or urllib3
            remedy = "Restart it (sudo systemctl restart docker), and see its log (journalctl -u docker)."
            yield Finding("Docker", f"the daemon does not answer: {error}", remedy)
            return
        yield from check_daemon(info, inventory, time.time())
        yield from check_image_space(images_folder(info, self.image_daemon.api.base_url), inventory)


def _has_daemon() -> bool:
    """Whether this host seems to have a daemon."""
    try:
        return "DOCKER_HOST" in os.environ or _SOCKET.exists()
    except PermissionError:
        return True


def check_daemon(info: Mapping[str, Any], inventory: Inventory, now: float) -> Iterator[Finding]:
    """Check the capabilities of a Docker daemon.

    Args:
        info: The result of ``docker info``.
        inventory: The GPUs that it should pass to containers.
        now: This host's time, in seconds since the epoch.
    """
    yield Finding("Docker", f"{info.get('ServerVersion', '?')} answers, {info.get('NCPU', '?')} cores")
    if inventory.gpus:
        yield from _check_toolkit(info, inventory)
    missing = [name for name in ("MemoryLimit", "SwapLimit", "PidsLimit") if info.get(name) is False]
    if missing:
        text = f"the kernel does not support {', '.join(missing)} (cgroup v{info.get('CgroupVersion', '1')})"
        remedy = "Add `cgroup_enable=memory swapaccount=1` to the kernel's command line, and restart the host."
        yield Finding("cgroups", text, remedy)
    else:
        yield Finding("cgroups", f"v{info.get('CgroupVersion', '1')}: memory and processes are limited")
    yield from _check_clock(str(info.get("SystemTime", "")), now)


def check_image_space(folder: Path | None, inventory: Inventory) -> Iterator[Finding]:
    """Check the disk space for images.

    Args:
        folder: The folder where the daemon stores them; None if it is on another host.
        inventory: The GPUs of jobs, since images with CUDA are larger.
    """
    if folder is not None:
        free, needed = shutil.disk_usage(folder).free, _SPACE_FOR_CUDA if inventory.gpus else _SPACE_FOR_IMAGES
        remedy = "" if free >= needed else f"Free {needed / _GIB:.0f} GiB: docker system df shows candidates."
        yield Finding("images", f"{free / _GIB:.1f} GiB are free in {folder}", remedy)


def _check_toolkit(info: Mapping[str, Any], inventory: Inventory) -> Iterator[Finding]:
    """Check whether the daemon can pass GPUs to containers in the requested mode."""
    version = str(info.get("ServerVersion", "0"))
    if inventory.driver == "nvidia":
        is_installed = "nvidia" in info.get("Runtimes", {}) or shutil.which("nvidia-container-runtime-hook")
        remedy = "" if is_installed else _INSTALL_TOOLKIT
        yield Finding("toolkit", f"NVIDIA's is {'installed' if is_installed else 'not installed'}", remedy)
    elif inventory.driver == "cdi" and _major(version) < _CDI_SINCE:
        text = f"Docker {version} does not support CDI"
        yield Finding("CDI", text, f"Install Docker {_CDI_SINCE} or newer, or set ALLRANKS_GPU_MODE=nvidia.")
    elif inventory.driver == "cdi" and not _specifications(info.get("CDISpecDirs") or ()):
        text = f"there is no specification in {', '.join(info.get('CDISpecDirs') or ('any folder',))}"
        remedy = "Run: sudo nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"
        yield Finding("CDI", text, remedy)


def _major(version: str) -> int:
    number = version.split(".", maxsplit=1)[0]
    return int(number) if number.isdecimal() else 0


def _specifications(folders: Sequence[str]) -> list[Path]:
    return [path for folder in folders for path in Path(folder).glob("*") if path.suffix in {".json", ".yaml"}]


def _check_clock(time_of_daemon: str, now: float) -> Iterator[Finding]:
    """Compare the clocks of the daemon's host and this host: attempts on several machines are sorted by time."""
    try:
        skew = abs(datetime.fromisoformat(f"{time_of_daemon[:19]}+00:00").timestamp() - now)
    except ValueError:
        return
    if not time_of_daemon.endswith("Z"):
        return
    text = f"the clocks of the daemon and this host differ by {skew:.0f} s"
    remedy = "" if skew <= _MAX_CLOCK_SKEW else "Synchronize both with NTP: sudo timedatectl set-ntp true"
    yield Finding("clock", text, remedy)
