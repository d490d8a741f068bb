"""The checks of ``allranks doctor``: whether this host can run jobs, with a remedy for each problem.

They change and remove nothing; they start only two ranks that communicate over gloo.
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
from allranks.cli.torch_check import check_torch
from allranks.engines import AUTO
from allranks.engines.base import Finding
from allranks.engines.gpus import GpuMode, Inventory, nvidia_cards, take_inventory
from allranks.engines.registry import OF_THIS_HOST, check_engine, engine_names
from allranks.errors import DeviceError
from allranks.ownership import lock_folder
from allranks.runner.unhealthy_gpus import UNHEALTHY_REMEDY, unhealthy_gpus
from allranks.user_cache import cache_folder, cache_limit

_GIB: Final = 1 << 30
_SPACE_FOR_RUNS: Final = _GIB
_SHM: Final = 512 << 20
_ROOT: Final = Path("/")

ENGINE_LIMIT: Final = 5.0
"""Seconds for all checks of one engine."""


def check_host(engine: str, mode: GpuMode, results: Path, *, python: str | None = None) -> Iterator[Finding]:
    """Check this host: first what every user needs, last what only some have.

    Args:
        engine: The requested engine.
        mode: How GPUs are found.
        results: The folder of all runs.
        python: The interpreter that ``process.python`` names; None for that of allranks.
    """
    yield from check_torch(python or sys.executable, runs_jobs=python is not None)
    try:
        inventory = take_inventory(mode)
        gpus = list(check_gpus(inventory))
    except DeviceError as error:
        inventory = Inventory()
        gpus = [Finding("GPUs", f"{error.what} {error.why}", error.remedy)]
    yield from _check_engine("process", engine, inventory)
    found = kernel.check()
    yield Finding("kernel", found.summary, kernel.REMEDY if found.refusal else "")
    yield from check_folders(results)
    for name in engine_names():
        if name != "process":
            yield from _check_engine(name, engine, inventory)
    yield from gpus


def _check_engine(name: str, requested: str, inventory: Inventory) -> Iterator[Finding]:
    """Check an engine that a run may use. The process engine is always checked: any run may have left processes."""
    if name not in (OF_THIS_HOST if requested == AUTO else (requested, "process")):
        yield Finding(name, f"run allranks doctor --engine {name} to check it", is_checked=False)
        return
    yield from _in_time(name, check_engine(name, is_requested=name == requested, inventory=inventory))


def _in_time(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings about an engine. If it does not answer in time (a daemon may hang), the last one says so."""
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


def check_gpus(inventory: Inventory, root: Path = _ROOT) -> Iterator[Finding]:
    """Check the driver, the health of the GPUs, and this user's access to them."""
    gpus = inventory.gpus
    if gpus:
        yield Finding("GPUs", f"{len(gpus)} ({inventory.driver}): {', '.join(map(inventory.name_of, gpus))}")
    elif (root / "proc/driver/nvidia/version").exists():
        text = "NVIDIA's driver is loaded, but its management library (NVML) reports no GPU"
        yield Finding("GPUs", text, "Run nvidia-smi and follow its advice, usually a restart.")
    elif cards := list(nvidia_cards(root)):
        text = f"there is an NVIDIA GPU ({', '.join(cards)}), but no driver"
        yield Finding("GPUs", text, "Install NVIDIA's driver, and restart the host.")
    else:
        yield Finding("GPUs", "none: tests that need GPUs are skipped")
    yield from check_health(inventory)
    locked = [node for node in inventory.of(gpus).nodes if not os.access(root / node.lstrip("/"), os.R_OK | os.W_OK)]
    if locked:
        text = f"this user may not use {', '.join(locked)}"
        yield Finding("groups", text, "Join their groups: sudo usermod -aG render,video $USER")


def check_health(inventory: Inventory) -> Iterator[Finding]:
    """Check the health of the GPUs, according to the driver and earlier runs."""
    for gpu, why in unhealthy_gpus(inventory).items():
        yield Finding("unhealthy GPU", f"{inventory.name_of(gpu)} is unhealthy: {why}", UNHEALTHY_REMEDY)


def check_folders(results: Path, shm: Path = Path("/dev/shm")) -> Iterator[Finding]:  # noqa: S108 - a default to check
    """Check free space and write permissions."""
    for subject, folder in (("results", results), ("cache", cache_folder())):
        yield _check_space(subject, _existing(folder), _SPACE_FOR_RUNS)
    yield Finding(
        "cache limit",
        f"environments and wheels may take {cache_limit() / _GIB:g} GiB each; the least recently used ones are removed",
    )
    yield _check_writable("locks", lock_folder())
    if shm.exists():
        yield _check_space("shared memory", shm, _SHM, f"Make it larger: sudo mount -o remount,size=2g {shm}")


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next((path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir()), _ROOT)


def _check_writable(subject: str, folder: Path) -> Finding:
    if os.access(folder, os.W_OK | os.X_OK):
        return Finding(subject, f"{folder} is writable")
    return Finding(subject, f"{folder} is not writable", f"Make it writable: sudo chmod a+rwxt {folder}")


def _check_space(subject: str, folder: Path, minimum: int, remedy: str = "") -> Finding:
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(
            subject, f"{folder} is not writable", "Make it writable, or choose another one (--results, XDG_CACHE_HOME)."
        )
    free = shutil.disk_usage(folder).free
    text = f"{free / _GIB:.1f} GiB are free in {folder}"
    if free >= minimum:
        return Finding(subject, text)
    return Finding(subject, text, remedy or f"Free some space: {minimum / _GIB:.1f} GiB is the minimum.")
