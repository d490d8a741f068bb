"""NVML without a driver: the functions of ``pynvml`` over a few devices, with its own errors."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml


@dataclass(frozen=True, kw_only=True)
class FakeDevice:
    """A GPU, or an instance of one.

    Attributes:
        mig: What is at its places for instances, None at one that is free; None where MIG is off.
        errors: What asking for something comes to: ``{"Name": 3}``.
        rows: Remapped rows: corrected, uncorrected, pending, failed; None where it has no such rows.
        ecc: Uncorrectable errors since the driver was loaded.
        pages: Whether a page waits to be retired.
        recovery: What the driver recommends, 0 for nothing; None where it is too old to say.
    """

    uuid: str
    name: str = "H100"
    memory: int = 80 << 30
    mig: tuple["FakeDevice | None", ...] | None = None
    knows_mig: bool = True
    errors: dict[str, int] = field(default_factory=dict)
    rows: tuple[int, int, int, int] | None = None
    ecc: int = 0
    pages: int = 0
    recovery: int | None = None


def device(letter, **about):
    return FakeDevice(uuid=f"GPU-{letter}", **about)


class FakeNvml:
    """Stands in for the module.

    Args:
        devices: By number.
        init: The error that initialising comes to; 0 for none.
    """

    NVMLError = pynvml.NVMLError

    def __init__(self, devices, init=0, driver="580.95.05"):
        self._devices = devices
        self._driver = driver
        self._init = init
        self.open = 0

    def nvmlInit(self):
        self._check(self._init)
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._asked(self._devices[index], "HandleByIndex")

    def nvmlDeviceGetUUID(self, handle):
        return self._asked(handle, "UUID").uuid

    def nvmlDeviceGetName(self, handle):
        return self._asked(handle, "Name").name

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=self._asked(handle, "MemoryInfo").memory)

    def nvmlDeviceGetMigMode(self, handle):
        self._check(0 if handle.knows_mig else pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [0 if handle.mig is None else 1, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return len(handle.mig)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        self._check(0 if handle.mig[index] else pynvml.NVML_ERROR_NOT_FOUND)
        return handle.mig[index]

    def nvmlSystemGetDriverVersion(self):
        return self._driver

    def nvmlDeviceGetRemappedRows(self, handle):
        self._check(pynvml.NVML_ERROR_NOT_SUPPORTED if handle.rows is None else 0)
        return self._asked(handle, "RemappedRows").rows

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle):
        return self._asked(handle, "RetiredPages").pages

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return self._asked(handle, "TotalEccErrors").ecc

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        unknown = pynvml.NVML_ERROR_NOT_SUPPORTED if handle.recovery is None else 0
        return [SimpleNamespace(nvmlReturn=unknown, value=SimpleNamespace(uiVal=handle.recovery))]

    def _asked(self, handle, what):
        self._check(handle.errors.get(what, 0))
        return handle

    def _check(self, code):
        if code:
            raise pynvml.NVMLError(code)
