"""A fake ``pynvml`` with a few devices and the errors of the real module."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml


@dataclass(frozen=True, kw_only=True)
class FakeDevice:
    """A GPU or a MIG instance.

    Attributes:
        mig: The MIG instances by index, None for a free index; None if MIG is disabled.
        errors: Error codes of queries, such as ``{"Name": 3}``.
        rows: Remapped rows: corrected, uncorrected, pending, failed; None if not supported.
        ecc: Uncorrectable errors since the driver was loaded.
        pages: Whether a page is pending retirement.
        recovery: The recommended recovery action, 0 for none; None if the driver does not support it.
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
    """Replaces the module ``pynvml``.

    Args:
        devices: The GPUs, by index.
        init: The error code of the initialization; 0 for none.
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
        return self._query(self._devices[index], "HandleByIndex")

    def nvmlDeviceGetUUID(self, handle):
        return self._query(handle, "UUID").uuid

    def nvmlDeviceGetName(self, handle):
        return self._query(handle, "Name").name

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=self._query(handle, "MemoryInfo").memory)

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
        return self._query(handle, "RemappedRows").rows

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle):
        return self._query(handle, "RetiredPages").pages

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        assert (kind, counter) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return self._query(handle, "TotalEccErrors").ecc

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        unknown = pynvml.NVML_ERROR_NOT_SUPPORTED if handle.recovery is None else 0
        return [SimpleNamespace(nvmlReturn=unknown, value=SimpleNamespace(uiVal=handle.recovery))]

    def _query(self, handle, what):
        self._check(handle.errors.get(what, 0))
        return handle

    def _check(self, code):
        if code:
            raise pynvml.NVMLError(code)
