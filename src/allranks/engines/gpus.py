"""The GPUs of this host, and how containers get them.

NVML lists NVIDIA's GPUs, and the kernel AMD's (``/sys/class/kfd``). Those of a remote daemon cannot be listed from
here, so the user names them (``ALLRANKS_GPUS``).
"""

import os
import queue
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from allranks.engines.base import GpuDriver, Passthrough
from allranks.engines.gpu_health import Nvml, fault_of
from allranks.errors import DeviceError, UsageError

_LIMIT: Final = 60.0
"""Seconds for NVML: the first call loads firmware, a few seconds per GPU, and may hang if a GPU is defective."""

_REMEDY: Final = (
    "Run nvidia-smi and follow its advice, usually to restart the host; or run without GPUs: ALLRANKS_GPU_MODE=none."
)

# nvml.h, enum nvmlReturn_t.
_NOT_SUPPORTED: Final = 3
_NOT_FOUND: Final = 6
_DRIVER_NOT_LOADED: Final = 9
_LIBRARY_NOT_FOUND: Final = 12
_FUNCTION_NOT_FOUND: Final = 13

_MIG_ENABLED: Final = 1


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, or an instance of a partitioned one (MIG)."""

    uuid: str  # its id for CUDA and NVIDIA's toolkit
    name: str = ""  # the product; empty if NVML does not report it
    memory_mib: int = 0  # 0 if NVML does not report it
    fault: str = ""  # the hardware fault that the driver reports; empty if it is healthy
    driver: str = ""  # the driver's version; empty if NVML does not report it

    @property
    def description(self) -> str:
        """Product and memory."""
        memory = f"{self.memory_mib / 1024:.0f} GiB" if self.memory_mib else ""
        return ", ".join(filter(None, (self.name, memory)))


def nvidia_gpus(nvml: Nvml | None = None, *, has_cards: bool = True, limit: float = _LIMIT) -> tuple[Gpu, ...]:
    """List NVIDIA's GPUs of this host by index, with MIG instances instead of partitioned GPUs.

    Args:
        nvml: The library; None for the host's own.
        has_cards: Whether this host is known to have NVIDIA cards. If so, a driver that is not loaded, or a missing
            Python module pynvml, is an error.
        limit: Time limit in seconds.

    Returns:
        The GPUs; an empty tuple if NVIDIA's driver is not installed.
    """
    # A defective device blocks its caller in the kernel, where Ctrl-C has no effect, but a thread can be abandoned.
    results: queue.SimpleQueue[tuple[Gpu, ...] | Exception] = queue.SimpleQueue()

    def query() -> None:
        try:
            results.put(_query(nvml or _library(has_cards=has_cards), has_cards=has_cards))
        except Exception as error:  # noqa: BLE001 - raised in the waiting thread
            results.put(error)

    threading.Thread(target=query, name="allranks-nvml", daemon=True).start()
    try:
        result = results.get(timeout=limit)
    except queue.Empty:
        msg = f"NVIDIA's management library (NVML) did not answer within {limit:g} s."
        raise DeviceError(msg, remedy=_REMEDY) from None
    if isinstance(result, Exception):
        raise result
    return result


def _library(*, has_cards: bool) -> Nvml | None:
    """NVIDIA's module pynvml; None if it is not installed and there is no card.

    Raises:
        DeviceError: There are cards, but the module is not installed.
    """
    try:
        # `allranks plan` needs no GPUs, and should not wait for this import.
        import pynvml  # type: ignore[import-untyped] # noqa: PLC0415 - NVIDIA has no types for it
    except ImportError as error:
        if not has_cards:
            return None
        msg = "This host has GPUs, but NVIDIA's Python bindings of NVML are not installed."
        remedy = (
            "Install them (pip install nvidia-ml-py), name the GPUs (ALLRANKS_GPUS), or set ALLRANKS_GPU_MODE=none."
        )
        raise DeviceError(msg, why=str(error), remedy=remedy) from error
    library: Nvml = pynvml
    return library


def _query(nvml: Nvml | None, *, has_cards: bool) -> tuple[Gpu, ...]:
    if nvml is None:
        return ()
    absent = {_LIBRARY_NOT_FOUND} if has_cards else {_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED}
    with _as_device_error(nvml, "cannot be initialized"):
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            if _code(error) in absent:
                return ()
            raise
    try:
        return tuple(_all_gpus(nvml))
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _all_gpus(nvml: Nvml) -> Iterator[Gpu]:
    with _as_device_error(nvml, "cannot count GPUs"):
        count = nvml.nvmlDeviceGetCount()
    for index in range(count):
        with _as_device_error(nvml, f"cannot identify GPU {index} of {count}"):
            yield from _gpus_at(nvml, index)


@contextmanager
def _as_device_error(nvml: Nvml, what: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        msg = f"NVIDIA's management library (NVML) {what}."
        raise DeviceError(msg, why=f"It reports: {error}.", remedy=_REMEDY) from error


def _gpus_at(nvml: Nvml, index: int) -> Iterator[Gpu]:
    """The GPU with this index, or its instances if it is partitioned: CUDA cannot use it as a whole then."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    fault = fault_of(nvml, handle)  # instances share the memory of the GPU
    if not _is_partitioned(nvml, handle):
        yield _gpu(nvml, handle, fault)
        return
    for instance_index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, instance_index)
        except nvml.NVMLError as error:
            if _code(error) != _NOT_FOUND:
                raise
            continue  # indexes may have gaps
        yield _gpu(nvml, instance, fault)


def _is_partitioned(nvml: Nvml, handle: Any) -> bool:  # noqa: ANN401 - NVML's
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if _code(error) in {_NOT_SUPPORTED, _FUNCTION_NOT_FOUND}:  # most GPUs; drivers before 450
            return False
        raise
    return current == _MIG_ENABLED


def _gpu(nvml: Nvml, handle: Any, fault: str) -> Gpu:  # noqa: ANN401 - NVML's
    name, memory, driver = "", 0, ""
    with suppress(nvml.NVMLError):  # only for display
        driver = nvml.nvmlSystemGetDriverVersion()
        name = nvml.nvmlDeviceGetName(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return Gpu(uuid=uuid, name=name, memory_mib=memory, fault=fault, driver=driver)


def _code(error: Exception) -> int | None:
    return getattr(error, "value", None)


GpuMode = Literal["auto", "nvidia", "cdi", "rocm", "none"]

GPUS_VARIABLE = "ALLRANKS_GPUS"
"""The environment variable with the ids of GPUs that cannot be listed, as on a remote daemon; separated by commas."""

_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Variables that restrict the visible GPUs, in order of precedence: a SLURM step may have only its own."""

_SLURM_JOB: Final = "SLURM_JOB_ID"
_ROCR: Final = "ROCR_VISIBLE_DEVICES"
_ROOT: Final = Path("/")
_NVIDIA_VENDOR: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"
_KFD: Final = Path("dev/kfd")
_TOPOLOGY: Final = Path("sys/class/kfd/kfd/topology/nodes")


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The GPUs that jobs may lease."""

    driver: GpuDriver = "nvidia"  # how containers get them
    gpus: tuple[str, ...] = ()  # their ids in the driver's order, which are UUIDs if available
    nodes: Mapping[str, Path] | None = None  # the device nodes of AMD GPUs, by id
    everything: tuple[str, ...] = ()  # all GPUs of the host, in order; empty if `gpus` has all
    root: Path = _ROOT  # the folder that contains ``/dev``
    descriptions: Mapping[str, str] = field(default_factory=dict)  # product and memory of GPUs, if known, by id
    faults: Mapping[str, str] = field(default_factory=dict)  # of unhealthy GPUs, by id
    version: str = ""  # the driver's version; empty if it is unknown

    def name_of(self, gpu: str) -> str:
        """The name of a GPU in messages: its index among all GPUs of the host, its description and its id."""
        all_gpus = self.everything or self.gpus
        number = f"GPU {all_gpus.index(gpu)}" if gpu in all_gpus else "GPU"
        return f"{number} ({', '.join(filter(None, (self.descriptions.get(gpu), gpu)))})"

    def indexes(self, gpus: Sequence[str]) -> tuple[int, ...]:
        """The indexes of these GPUs among all GPUs of the host."""
        return tuple(map((self.everything or self.gpus).index, gpus))

    def only(self, selection: str) -> Self:
        """Restrict the inventory to some of its GPUs; see :func:`chosen_gpus`."""
        return replace(self, gpus=chosen_gpus(self.gpus, selection), everything=self.everything or self.gpus)

    def of(self, gpus: Sequence[str]) -> Passthrough:
        """How a container gets these GPUs."""
        if not gpus or self.driver != "rocm":
            return Passthrough(driver=self.driver)
        paths = [_KFD, *((self.nodes or {}).get(gpu, Path("dev/dri", gpu)) for gpu in gpus)]
        return Passthrough(
            driver="rocm",
            nodes=tuple(f"/{path}" for path in paths),
            groups=tuple(sorted(set(_groups(self.root / path for path in paths)))),
            numbers=self.indexes(gpus),
        )


def _groups(paths: Iterator[Path]) -> Iterator[int]:
    """The ids of the groups that may use device nodes; names may differ in a container."""
    for path in paths:
        with suppress(OSError):  # the device nodes of a remote daemon are not on this host
            yield path.stat().st_gid


def take_inventory(
    mode: GpuMode = "auto", environ: Mapping[str, str] = os.environ, root: Path = _ROOT, nvml: Nvml | None = None
) -> Inventory:
    """List the GPUs of this host.

    Args:
        mode: The kind of GPUs; ``auto`` means NVIDIA's or, if there are none, AMD's.
        environ: Variables that name the GPUs, or hide some, as batch systems do (``CUDA_VISIBLE_DEVICES``, and for
            AMD's ``ROCR_VISIBLE_DEVICES`` and ``HIP_VISIBLE_DEVICES``). An empty value hides all GPUs. A SLURM job
            without any of them has no GPUs.
        root: The folder that contains ``/dev`` and ``/sys``.
        nvml: NVIDIA's library; None for the host's own.
    """
    if mode == "none":
        return Inventory()
    if GPUS_VARIABLE in environ:
        names = (name.strip() for name in environ[GPUS_VARIABLE].split(","))
        gpus = tuple(dict.fromkeys(name for name in names if name))
        return Inventory(driver="nvidia" if mode == "auto" else mode, gpus=gpus, root=root)
    nvidia = nvidia_gpus(nvml, has_cards=any(nvidia_cards(root))) if mode != "rocm" else ()
    if nvidia or mode in {"nvidia", "cdi"}:
        found = _of_nvidia("cdi" if mode == "cdi" else "nvidia", nvidia, root)
        return _only_visible(found, environ, _VISIBLE)
    nodes = dict(_amd_gpus(root))
    shown = tuple(_visible(tuple(nodes), environ[_ROCR])) if _ROCR in environ else tuple(nodes)
    driver: GpuDriver = "rocm" if nodes or mode == "rocm" else "nvidia"
    # HIP's indexes refer to the GPUs that ROCr shows, and jobs inherit ROCr's variable.
    found = Inventory(driver=driver, gpus=shown, nodes=nodes, everything=shown, root=root)
    of_all = _VISIBLE if _ROCR not in environ else _VISIBLE[:1]
    return _only_visible(found, environ, ("HIP_VISIBLE_DEVICES", *of_all))


def _only_visible(inventory: Inventory, environ: Mapping[str, str], names: Sequence[str]) -> Inventory:
    """Restrict the inventory by the first of these variables that is set. Without any, a SLURM job has no GPUs."""
    shown = next((environ[name] for name in names if name in environ), None)
    if shown is None and (_SLURM_JOB not in environ or _ROCR in environ):
        return inventory
    return replace(inventory, gpus=tuple(_visible(inventory.gpus, shown or "")))


def chosen_inventory(mode: GpuMode, selection: str | None) -> Inventory:
    """List the GPUs for a command: all visible ones, or those of its option ``--gpus`` (:func:`chosen_gpus`)."""
    inventory = take_inventory(mode)
    return inventory if selection is None else inventory.only(selection)


def _of_nvidia(driver: GpuDriver, gpus: Sequence[Gpu], root: Path) -> Inventory:
    descriptions = {gpu.uuid: gpu.description for gpu in gpus}
    ids = tuple(descriptions)
    faults = {gpu.uuid: gpu.fault for gpu in gpus if gpu.fault}
    version = next((gpu.driver for gpu in gpus), "")
    return Inventory(
        driver=driver,
        gpus=ids,
        everything=ids,
        root=root,
        descriptions=descriptions,
        faults=faults,
        version=version,
    )


def _visible(gpus: Sequence[str], shown: str) -> Iterator[str]:
    """The GPUs that CUDA shows for a value of ``CUDA_VISIBLE_DEVICES``.

    Entries are indexes or prefixes of ids. The list ends at the first entry that matches no GPU (CUDA C++ Programming
    Guide, "CUDA Environment Variables").
    """
    for name in map(str.strip, shown.split(",")):
        named = gpus[int(name) : int(name) + 1] if name.isdecimal() else [gpu for gpu in gpus if gpu.startswith(name)]
        if not name or len(named) != 1:
            return
        yield named[0]


def nvidia_cards(root: Path = _ROOT) -> Iterator[str]:
    """The PCI addresses of NVIDIA's GPUs, with or without a driver; ``/sys`` is in `root`."""
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS):
            yield device.name


def _amd_gpus(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the id and the device node of each AMD GPU. Nodes of the topology without SIMD units are CPUs."""
    folders = (root / _TOPOLOGY).glob("[0-9]*")
    for folder in sorted(folders, key=lambda folder: int(folder.name)):
        try:
            lines = (folder / "properties").read_text(encoding="ascii").splitlines()
        except OSError:
            continue  # the kernel hides the properties of GPUs that this user's cgroup may not use
        fields = {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdecimal()}
        if fields.get("simd_count") and fields.get("drm_render_minor"):
            node = Path("dev/dri", f"renderD{fields['drm_render_minor']}")
            yield (f"GPU-{fields['unique_id']:016x}" if fields.get("unique_id") else node.name), node


def chosen_gpus(gpus: Sequence[str], selection: str) -> tuple[str, ...]:
    """The GPUs that a list of indexes, ranges and ids selects, such as ``0,2-3``.

    Raises:
        UsageError: One of them does not exist.
    """
    parts = [part.strip() for part in selection.split(",") if part.strip()]
    return tuple(dict.fromkeys(gpu for part in parts for gpu in _chosen(gpus, part)))


def _chosen(gpus: Sequence[str], part: str) -> Sequence[str]:
    if part in gpus:
        return (part,)
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
    if first <= last < len(gpus):
        return gpus[first : last + 1]
    available = ", ".join(f"{index} ({gpu})" for index, gpu in enumerate(gpus)) or "none"
    msg = f"There is no GPU {part} on this host."
    raise UsageError(msg, why=f"The GPUs are: {available}.", remedy="Select some of them, as in --gpus 0,2-3.")
