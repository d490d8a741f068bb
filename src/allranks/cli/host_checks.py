"""Whether this host can run jobs, with one remedy for each problem: ``allranks doctor``.

The checks change and remove nothing; they start only two ranks that communicate over gloo.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Final

from allranks.agent import kernel
from allranks.cli.torch_check import examine_torch
from allranks.engines import AUTO
from allranks.engines.base import Finding
from allranks.engines.gpus import GpuMode, Inventory, nvidia_cards, take_inventory
from allranks.engines.registry import check_engine, engine_names
from allranks.errors import DeviceError
from allranks.ownership import lock_folder
from allranks.runner.sick_gpus import SICK_REMEDY, sick_gpus
from allranks.user_cache import cache_folder, cache_limit

_GIB: Final = 1 << 30
_ROOM_FOR_RUNS: Final = _GIB
_SHM: Final = 512 << 20
_ROOT: Final = Path("/")

ENGINE_LIMIT: Final = 5.0
"""Seconds for all checks of one engine."""


def examine(engine: str, mode: GpuMode, results: Path, *, python: str | None = None) -> Iterator[Finding]:
    """Check this host: first what every user needs, last what only some have.

    Args:
        engine: The requested engine.
        mode: How GPUs are found.
        results: The folder of all runs.
        python: The interpreter that ``process.python`` names; None for that of allranks.
    """
    yield from examine_torch(python or sys.executable, runs_jobs=python is not None)
    try:
        inventory = take_inventory(mode)
        gpus = list(examine_gpus(inventory))
    except DeviceError as error:
        inventory = Inventory()
        gpus = [Finding("GPUs", f"{error.what} {error.why}", error.remedy)]
    yield from _examine_engine("process", engine, inventory)
    yield examine_kernel()
    yield from examine_folders(results)
    for name in engine_names():
        if name != "process":
            yield from _examine_engine(name, engine, inventory)
    yield from gpus


def examine_kernel() -> Finding:
    """Check that the kernel has what runs rely on."""
    found = kernel.examine()
    return Finding("kernel", found.summary, kernel.REMEDY if found.refusal else "")


def _examine_engine(name: str, requested: str, inventory: Inventory) -> Iterator[Finding]:
    """Check an engine that a run would use; processes always, since any run may have left some."""
    if name not in {requested, "process"} and requested != AUTO:
        yield Finding(name, f"not checked: the requested engine is {requested}")
        return
    yield from _in_time(name, check_engine(name, is_requested=name == requested, inventory=inventory))


def _in_time(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings about an engine, and one more if it does not answer in time, as a daemon that hangs."""
    results: Queue[Finding | BaseException | None] = Queue()

    def collect() -> None:
        end: BaseException | None = None
        try:
            for finding in findings:
                results.put(finding)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that reads the results
            end = error
        results.put(end)

    Thread(target=collect, daemon=True).start()
    deadline = time.monotonic() + ENGINE_LIMIT
    while True:
        try:
            result = results.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            yield Finding(name, f"no answer within {ENGINE_LIMIT:g} s", "Restart its service, and see its log.")
            return
        if result is None:
            return
        if isinstance(result, BaseException):
            raise result
        yield result


def examine_gpus(inventory: Inventory, root: Path = _ROOT) -> Iterator[Finding]:
    """Check the driver, and this user's access to the GPUs."""
    gpus = inventory.gpus
    if gpus:
        yield Finding("GPUs", f"{len(gpus)} ({inventory.driver}): {', '.join(map(inventory.name_of, gpus))}")
    elif (root / "proc/driver/nvidia/version").exists():
        text = "NVIDIA's driver is loaded, but its management library (NVML) reports no GPU"
        yield Finding("GPUs", text, "Run nvidia-smi and follow its advice, usually a restart.")
    elif cards := list(nvidia_cards(root)):
        text = f"an NVIDIA GPU is present ({', '.join(cards)}), but no driver"
        yield Finding("GPUs", text, "Install NVIDIA's driver, and restart the host.")
    else:
        yield Finding("GPUs", "none: tests that need some are skipped")
    yield from examine_health(inventory)
    locked = [node for node in inventory.of(gpus).nodes if not os.access(root / node.lstrip("/"), os.R_OK | os.W_OK)]
    if locked:
        text = f"this user may not use {', '.join(locked)}"
        yield Finding("groups", text, "Join their groups: sudo usermod -aG render,video $USER")


def examine_health(inventory: Inventory) -> Iterator[Finding]:
    """Check whether the driver, or earlier runs, have found a GPU to be sick."""
    for gpu, why in sick_gpus(inventory).items():
        yield Finding("sick GPU", f"{inventory.name_of(gpu)} is sick: {why}", SICK_REMEDY)


def examine_folders(results: Path, shm: Path = Path("/dev/shm")) -> Iterator[Finding]:  # noqa: S108 - a default to check
    """Check free space and write permissions."""
    for subject, folder in (("results", results), ("cache", cache_folder())):
        yield _room(subject, _existing(folder), _ROOM_FOR_RUNS)
    yield Finding(
        "cache limit",
        f"environments and wheels may take {cache_limit() / _GIB:g} GiB each; the least recently used ones are removed",
    )
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
    return Finding(subject, text, remedy or f"Free some space: {wanted / _GIB:.1f} GiB are the minimum.")
