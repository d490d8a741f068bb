"""Whether this host can run jobs, with one remedy for each problem: ``allranks doctor``.

The checks are read-only: they start, change and remove nothing.
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from allranks.engine.ownership import lock_folder
from allranks.engine.process import ProcessEngine
from allranks.engine.protocol import Engine
from allranks.errors import DeviceError, EngineError
from allranks.matrix.model import EngineName
from allranks.schedule.gpus import GpuMode, Inventory, nvidia_cards, take_inventory
from allranks.schedule.host import is_daemon_expected
from allranks.user_cache import cache_folder

_GIB: Final = 1 << 30
_ROOM_FOR_IMAGES: Final = 4 * _GIB
_ROOM_FOR_CUDA: Final = 24 * _GIB
"""A CUDA image of torch is 6 GB, and its build takes 24 GB meanwhile (``allranks.image.builders``)."""

_ROOM_FOR_RUNS: Final = _GIB
_SHM: Final = 512 << 20
_SECONDS_APART: Final = 5.0
_CDI_SINCE: Final = 25
_ROOT: Final = Path("/")
_INSTALL_TOOLKIT: Final = (
    "Install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker`, and restart Docker."
)


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        subject: What was checked, in a word or two.
        text: Its state.
        remedy: The one thing to do; empty if there is no problem.
    """

    subject: str
    text: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The finding as it is printed."""
        mark = "PROBLEM" if self.remedy else "ok"
        told = f"{mark:7}  {self.subject}: {self.text}"
        return f"{told}\n         -> {self.remedy}" if self.remedy else told


def examine(engine: EngineName, mode: GpuMode, results: Path) -> Iterator[Finding]:
    """Check this host.

    Args:
        engine: Where jobs are to run, as for a run.
        mode: Whose GPUs, as for a run.
        results: The folder of all runs; it need not exist yet.
    """
    try:
        inventory = take_inventory(mode)
        yield from examine_gpus(inventory)
    except DeviceError as error:
        inventory = Inventory()
        yield Finding("GPUs", f"{error.what} {error.why}", error.remedy)
    yield from examine_folders(results)
    yield from _remains(ProcessEngine(cache_folder() / "package"))
    if not is_daemon_expected(engine):
        yield Finding("Docker", "not looked for: jobs are processes of this host")
        return
    try:
        # The SDK takes a tenth of a second to import, and its import error is worth reporting.
        from allranks.engine.docker import DockerEngine, connect  # noqa: PLC0415
        from allranks.image.builders import images_folder  # noqa: PLC0415

        client = connect(timeout=10)
    except ImportError as error:
        yield Finding("Docker", f"its SDK for Python cannot be imported: {error}", "Install it: pip install docker")
        return
    except EngineError as error:
        yield Finding("Docker", f"{error.what} {error.why}".strip(), error.remedy)
        return
    with closing(client):
        try:
            said: dict[str, Any] = client.info()
        except Exception as error:  # noqa: BLE001 - the SDK's, requests' or urllib3's own
            yield Finding("Docker", f"a daemon is there and does not answer: {error}", "Restart it, and see its log.")
            return
        yield from examine_daemon(said, inventory, time.time())
        yield from examine_images(images_folder(said, client.api.base_url), inventory)
        yield from _remains(DockerEngine(client, ()))


def examine_gpus(inventory: Inventory, root: Path = _ROOT) -> Iterator[Finding]:
    """Check the driver, and this user's access to the GPUs.

    Args:
        inventory: The GPUs that were found.
        root: Where ``/sys``, ``/proc`` and ``/dev`` are.
    """
    gpus = inventory.gpus
    if gpus:
        yield Finding("GPUs", f"{len(gpus)} ({inventory.driver}): {', '.join(map(inventory.name_of, gpus))}")
    elif (root / "proc/driver/nvidia/version").exists():
        text = "NVIDIA's driver is loaded, and its management library (NVML) has no GPU"
        yield Finding("GPUs", text, "Run nvidia-smi, and do what it says: mostly a restart.")
    elif cards := list(nvidia_cards(root)):
        text = f"there is one of NVIDIA's ({', '.join(cards)}), and no driver"
        yield Finding("GPUs", text, "Install NVIDIA's driver, and restart the host.")
    else:
        yield Finding("GPUs", "none: tests that need some are skipped")
    locked = [node for node in inventory.of(gpus).nodes if not os.access(root / node.lstrip("/"), os.R_OK | os.W_OK)]
    if locked:
        text = f"this user may not use {', '.join(locked)}"
        yield Finding("groups", text, "Join their groups: sudo usermod -aG render,video $USER")


def examine_folders(results: Path, shm: Path = Path("/dev/shm")) -> Iterator[Finding]:  # noqa: S108 - a default to check
    """Check free space and write permissions.

    Args:
        results: The folder of all runs.
        shm: The folder of shared memory that ranks on the host use.
    """
    for subject, folder in (("results", results), ("cache", cache_folder())):
        yield _room(subject, _existing(folder), _ROOM_FOR_RUNS)
    yield _writable("locks", lock_folder())
    if shm.exists():
        yield _room("shared memory", shm, _SHM, f"Make it larger: sudo mount -o remount,size=2g {shm}")


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next((path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir()), _ROOT)


def _writable(subject: str, folder: Path) -> Finding:
    if os.access(folder, os.W_OK | os.X_OK):
        return Finding(subject, f"{folder} is writable")
    return Finding(subject, f"{folder} is not writable", f"Make it writable: sudo chmod a+rwxt {folder}")


def _room(subject: str, folder: Path, wanted: int, remedy: str = "") -> Finding:
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(subject, f"{folder} is not writable", "Make it writable, or name another one.")
    free = shutil.disk_usage(folder).free
    text = f"{free / _GIB:.1f} GiB are free in {folder}"
    if free >= wanted:
        return Finding(subject, text)
    return Finding(subject, text, remedy or f"Make room: {wanted / _GIB:.1f} GiB are the least.")


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
        remedy = "" if free >= wanted else f"Make room for {wanted / _GIB:.0f} GiB: docker system df shows what may go."
        yield Finding("images", f"{free / _GIB:.1f} GiB are free in {folder}", remedy)


def _toolkit(said: Mapping[str, Any], inventory: Inventory) -> Iterator[Finding]:
    """Check whether the daemon can pass GPUs to containers in the requested mode."""
    version = str(said.get("ServerVersion", "0"))
    if inventory.driver == "nvidia":
        is_there = "nvidia" in said.get("Runtimes", {}) or shutil.which("nvidia-container-runtime-hook")
        remedy = "" if is_there else _INSTALL_TOOLKIT
        yield Finding("toolkit", f"NVIDIA's is {'there' if is_there else 'not there'}", remedy)
    elif inventory.driver == "cdi" and _major(version) < _CDI_SINCE:
        text = f"Docker {version} knows no CDI"
        yield Finding("CDI", text, f"Install Docker {_CDI_SINCE}, or take --gpu-mode nvidia.")
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


def _remains(engine: Engine) -> Iterator[Finding]:
    try:
        remains = engine.remains()
    except EngineError as error:
        yield Finding("remains", f"{error.what} {error.why}", error.remedy)
        return
    for name in remains:
        yield Finding("remains", f"{name} is of a run that is dead", "Run: allranks clean")
    if not remains:
        yield Finding("remains", f"no dead run has left anything ({engine.name})")
