"""The engine ``docker``: jobs in containers of a daemon, in images that allranks builds."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from allranks.engines.gpus import Inventory
from allranks.engines.kind import Finding, JobEnvironment, MakeEnvironment, Progress, examine_remains
from allranks.engines.package import bytecode_of, package_files
from allranks.errors import EngineError
from allranks.matrix.model import Image, Matrix
from allranks.user_cache import cache_folder

if TYPE_CHECKING:
    from docker import DockerClient

    from allranks.engines.base import Engine, FileCopy
    from allranks.engines.docker import DockerEngine

_SOCKET = Path("/var/run/docker.sock")

_GIB: Final = 1 << 30
_ROOM_FOR_IMAGES: Final = 4 * _GIB
_ROOM_FOR_CUDA: Final = 24 * _GIB
"""A CUDA image of torch is 6 GB, and its build takes 24 GB meanwhile (``allranks.images.builders``)."""

_SECONDS_APART: Final = 5.0
_CDI_SINCE: Final = 25
_INSTALL_TOOLKIT: Final = (
    "Install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker`, and restart Docker."
)


class DockerKind:
    """See :class:`allranks.engines.kind.EngineKind`."""

    name = "docker"

    def why_not(self) -> str:
        """See :meth:`allranks.engines.kind.EngineKind.why_not`."""
        try:
            is_expected = "DOCKER_HOST" in os.environ or _SOCKET.exists()
        except PermissionError:
            is_expected = True
        return "" if is_expected else f"no Docker daemon: there is no {_SOCKET}"

    def connect(self) -> "ConnectedDaemon":
        """See :meth:`allranks.engines.kind.EngineKind.connect`."""
        return ConnectedDaemon(_connector()())

    def examine(self, inventory: Inventory) -> Iterator[Finding]:
        """See :meth:`allranks.engines.kind.EngineKind.examine`."""
        try:
            client = _connector()(timeout=10)
            from allranks.images.builders import images_folder  # noqa: PLC0415 - see _connector
        except EngineError as error:
            yield Finding("Docker", f"{error.what} {error.why}".strip(), error.remedy)
            return
        with closing(client):
            try:
                said: dict[str, Any] = client.info()
            except Exception as error:  # noqa: BLE001 - the SDK's, requests' or urllib3's own
                yield Finding("Docker", f"the daemon does not answer: {error}", "Restart it, and see its log.")
                return
            yield from examine_daemon(said, inventory, time.time())
            yield from examine_images(images_folder(said, client.api.base_url), inventory)
            yield from examine_remains(_docker_engine(client))


KIND = DockerKind()


def _connector() -> "Callable[..., DockerClient]":
    """The function that makes a client.

    Raises:
        EngineError: The SDK cannot be imported.
    """
    try:
        # The SDK takes a tenth of a second to import: hosts without a daemon do without.
        from allranks.images.docker_client import connect  # noqa: PLC0415
    except ImportError as error:
        msg = "The Docker SDK for Python is not installed."
        remedy = "Install it (pip install docker), or use --engine process."
        raise EngineError(msg, why=str(error), remedy=remedy) from error
    return connect


def _docker_engine(client: "DockerClient", package: "tuple[FileCopy, ...]" = ()) -> "DockerEngine":
    """A docker engine; without a package it can only clean up."""
    from allranks.engines.docker import DockerEngine  # noqa: PLC0415 - see _connector

    return DockerEngine(client, package)


@dataclass(frozen=True)
class ConnectedDaemon:
    """See :class:`allranks.engines.kind.ConnectedEngine`."""

    image_daemon: "DockerClient"
    name = "docker"
    answer = "a Docker daemon answers"

    def most_jobs(self, _matrix: Matrix | None = None) -> None:
        """See :meth:`allranks.engines.kind.ConnectedEngine.most_jobs`."""

    def capacity(self) -> tuple[int, int]:
        """Cores and MiB of the host that the daemon is on, which may be another one."""
        from allranks.engines.docker_job import as_engine_error  # noqa: PLC0415 - see _connector

        with as_engine_error("The daemon does not report the size of its host."):
            said = self.image_daemon.info()
        return int(said["NCPU"]), int(said["MemTotal"]) >> 20

    def cleaner(self) -> "Engine":
        """See :meth:`allranks.engines.kind.ConnectedEngine.cleaner`."""
        return _docker_engine(self.image_daemon)

    def engine_for(
        self, matrix: Matrix, progress: Progress, uses: ExitStack | None
    ) -> "tuple[Engine, MakeEnvironment]":
        """See :meth:`allranks.engines.kind.ConnectedEngine.engine_for`."""
        from allranks.images.built_image import ensure_image  # noqa: PLC0415 - see _connector
        from allranks.images.project import project_files  # noqa: PLC0415

        def make(image: Image) -> JobEnvironment:
            made = ensure_image(image, root=matrix.root, client=self.image_daemon, progress=progress, uses=uses)
            copied = (project_files(image, matrix.root, progress),) if image.mode == "copy" else ()
            return JobEnvironment(image=made.reference, python_path=copied)

        package = package_files()
        files = (*package, *bytecode_of(package, cache_folder() / "bytecode"))
        return _docker_engine(self.image_daemon, files), make


def examine_daemon(said: Mapping[str, Any], inventory: Inventory, now: float) -> Iterator[Finding]:
    """Check what a Docker daemon supports.

    Args:
        said: The daemon's own report (``docker info``).
        inventory: The GPUs that it should pass to containers.
        now: This host's time, in seconds since the epoch.
    """
    yield Finding("Docker", f"{said.get('ServerVersion', '?')} answers, {said.get('NCPU', '?')} cores")
    if inventory.gpus:
        yield from _toolkit(said, inventory)
    lacking = [name for name in ("MemoryLimit", "SwapLimit", "PidsLimit") if said.get(name) is False]
    if lacking:
        text = f"the kernel enforces no {', '.join(lacking)} (cgroup v{said.get('CgroupVersion', '1')})"
        remedy = "Add `cgroup_enable=memory swapaccount=1` to the kernel's command line, and restart the host."
        yield Finding("cgroups", text, remedy)
    else:
        yield Finding("cgroups", f"v{said.get('CgroupVersion', '1')}: memory and processes are limited")
    yield from _clock(str(said.get("SystemTime", "")), now)


def examine_images(folder: Path | None, inventory: Inventory) -> Iterator[Finding]:
    """Check the disk space for images.

    Args:
        folder: The folder where the daemon stores them; None if it is on another host.
        inventory: The GPUs of jobs: images with CUDA are larger.
    """
    if folder is not None:
        free, wanted = shutil.disk_usage(folder).free, _ROOM_FOR_CUDA if inventory.gpus else _ROOM_FOR_IMAGES
        remedy = "" if free >= wanted else f"Free {wanted / _GIB:.0f} GiB: docker system df shows candidates."
        yield Finding("images", f"{free / _GIB:.1f} GiB are free in {folder}", remedy)


def _toolkit(said: Mapping[str, Any], inventory: Inventory) -> Iterator[Finding]:
    """Check whether the daemon can pass GPUs to containers in the requested mode."""
    version = str(said.get("ServerVersion", "0"))
    if inventory.driver == "nvidia":
        is_there = "nvidia" in said.get("Runtimes", {}) or shutil.which("nvidia-container-runtime-hook")
        remedy = "" if is_there else _INSTALL_TOOLKIT
        yield Finding("toolkit", f"NVIDIA's is {'there' if is_there else 'not there'}", remedy)
    elif inventory.driver == "cdi" and _major(version) < _CDI_SINCE:
        text = f"Docker {version} does not support CDI"
        yield Finding("CDI", text, f"Install Docker {_CDI_SINCE}, or use --gpu-mode nvidia.")
    elif inventory.driver == "cdi" and not _specifications(said.get("CDISpecDirs") or ()):
        text = f"no specification is in {', '.join(said.get('CDISpecDirs') or ('any folder',))}"
        remedy = "Run: sudo nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"
        yield Finding("CDI", text, remedy)


def _major(version: str) -> int:
    number = version.split(".", maxsplit=1)[0]
    return int(number) if number.isdecimal() else 0


def _specifications(folders: Sequence[str]) -> list[Path]:
    return [path for folder in folders for path in Path(folder).glob("*") if path.suffix in {".json", ".yaml"}]


def _clock(said: str, now: float) -> Iterator[Finding]:
    """Compare the clock of the daemon's host with ours: attempts from several machines are ordered by time."""
    try:
        apart = abs(datetime.fromisoformat(f"{said[:19]}+00:00").timestamp() - now)
    except ValueError:
        return
    if not said.endswith("Z"):
        return
    text = f"the daemon's and this host's are {apart:.0f} s apart"
    remedy = "" if apart <= _SECONDS_APART else "Set both by NTP: sudo timedatectl set-ntp true"
    yield Finding("clock", text, remedy)
