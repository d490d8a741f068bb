"""NVIDIA's GPUs, as NVIDIA's management library (NVML) knows them, through NVIDIA's own bindings (nvidia-ml-py)."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from allranks.errors import DeviceError

_LIMIT: Final = 60.0
"""Seconds: a first call loads the driver's firmware, a few seconds for each GPU; a sick one may never answer."""

_REMEDY: Final = (
    "Run nvidia-smi, and do what it says, mostly a restart of the host; or leave GPUs out: --gpu-mode none."
)

# nvml.h, enum nvmlReturn_t.
_NOT_SUPPORTED: Final = 3
_NOT_FOUND: Final = 6
_DRIVER_NOT_LOADED: Final = 9
_LIBRARY_NOT_FOUND: Final = 12
_FUNCTION_NOT_FOUND: Final = 13

_MIG_ENABLED: Final = 1


class Nvml(Protocol):
    """What of the module ``pynvml`` is asked; a handle is whatever it hands out, errors are its ``NVMLError``."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: D102, N802 - NVIDIA's names, and NVIDIA's manual
    def nvmlShutdown(self) -> None: ...  # noqa: D102, N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any: ...  # noqa: ANN401, D102, N802
    def nvmlDeviceGetUUID(self, handle: Any, /) -> str: ...  # noqa: ANN401, D102, N802
    def nvmlDeviceGetName(self, handle: Any, /) -> str: ...  # noqa: ANN401, D102, N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any, /) -> Any: ...  # noqa: ANN401, D102, N802
    def nvmlDeviceGetMigMode(self, handle: Any, /) -> list[int]: ...  # noqa: ANN401, D102, N802
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, /) -> int: ...  # noqa: ANN401, D102, N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int, /) -> Any: ...  # noqa: ANN401, D102, N802


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, or an instance of one that is cut up (MIG).

    Attributes:
        uuid: What CUDA and NVIDIA's toolkit know it by.
        name: The product; empty where NVML does not say.
        memory_mib: 0 where NVML does not say.
    """

    uuid: str
    name: str = ""
    memory_mib: int = 0

    @property
    def description(self) -> str:
        """For people: product and memory."""
        memory = f"{self.memory_mib / 1024:.0f} GiB" if self.memory_mib else ""
        return ", ".join(filter(None, (self.name, memory)))


def nvidia_gpus(nvml: Nvml | None = None, *, has_cards: bool = True, limit: float = _LIMIT) -> tuple[Gpu, ...]:
    """The GPUs of this host by their numbers, instances in the place of those that are cut up.

    Args:
        nvml: The library; None for the host's own.
        has_cards: Whether cards of NVIDIA's are known to be there: without one nobody misses the driver.
        limit: Seconds in which it has to answer.

    Returns:
        None of them where NVIDIA's driver is not installed.

    Raises:
        DeviceError: NVML has an error in the place of an answer, or none at all.
    """
    # A sick device holds its caller in the kernel, where no Ctrl-C reaches: a thread can be left there.
    answers: queue.SimpleQueue[tuple[Gpu, ...] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_ask(nvml or _library(has_cards=has_cards), has_cards=has_cards))
        except Exception as error:  # noqa: BLE001 - raised where somebody waits for it
            answers.put(error)

    threading.Thread(target=ask, name="allranks-nvml", daemon=True).start()
    try:
        answer = answers.get(timeout=limit)
    except queue.Empty:
        msg = "NVIDIA's management library (NVML) does not answer."
        raise DeviceError(msg, why=f"It was given {limit:g} s.", remedy=_REMEDY) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _library(*, has_cards: bool) -> Nvml | None:
    """NVIDIA's bindings; None where they are not installed and no card asks for them.

    Raises:
        DeviceError: There are cards, and no bindings.
    """
    try:
        # A plan asks nobody, and need not wait for it.
        import pynvml  # type: ignore[import-untyped] # noqa: PLC0415 - NVIDIA has no types for it
    except ImportError as error:
        if not has_cards:
            return None
        msg = "This host has GPUs, and NVIDIA's bindings of NVML are not installed."
        remedy = "Install them (pip install nvidia-ml-py), name the GPUs (ALLRANKS_GPUS), or use --gpu-mode none."
        raise DeviceError(msg, why=str(error), remedy=remedy) from error
    library: Nvml = pynvml
    return library


def _ask(nvml: Nvml | None, *, has_cards: bool) -> tuple[Gpu, ...]:
    if nvml is None:
        return ()
    absent = {_LIBRARY_NOT_FOUND} if has_cards else {_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED}
    with _as_device_error(nvml, "cannot be initialised"):
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            if _code(error) in absent:
                return ()
            raise
    try:
        return tuple(_found(nvml))
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _found(nvml: Nvml) -> Iterator[Gpu]:
    with _as_device_error(nvml, "cannot count GPUs"):
        count = nvml.nvmlDeviceGetCount()
    for number in range(count):
        with _as_device_error(nvml, f"cannot say what GPU {number} of {count} is"):
            yield from _gpus_at(nvml, number)


@contextmanager
def _as_device_error(nvml: Nvml, what: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        msg = f"NVIDIA's management library (NVML) {what}."
        raise DeviceError(msg, why=f"It says: {error}.", remedy=_REMEDY) from error


def _gpus_at(nvml: Nvml, number: int) -> Iterator[Gpu]:
    """The GPU of a number, or its instances: CUDA cannot use a GPU that is to be cut up as a whole."""
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    if not _is_cut_up(nvml, handle):
        yield _gpu(nvml, handle)
        return
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError as error:
            if _code(error) != _NOT_FOUND:
                raise
            continue  # places need not be filled in their order
        yield _gpu(nvml, instance)


def _is_cut_up(nvml: Nvml, handle: Any) -> bool:  # noqa: ANN401 - NVML's
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if _code(error) in {_NOT_SUPPORTED, _FUNCTION_NOT_FOUND}:  # most GPUs; drivers before 450
            return False
        raise
    return current == _MIG_ENABLED


def _gpu(nvml: Nvml, handle: Any) -> Gpu:  # noqa: ANN401 - NVML's
    name, memory = "", 0
    with suppress(nvml.NVMLError):  # only people need these
        name = nvml.nvmlDeviceGetName(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    return Gpu(uuid=nvml.nvmlDeviceGetUUID(handle), name=name, memory_mib=memory)


def _code(error: Exception) -> int | None:
    return getattr(error, "value", None)
