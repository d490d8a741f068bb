"""The health of a GPU as reported by NVIDIA's driver: whether it needs a reset, a restart or a repair.

Xid messages in the kernel log are not used: few users may read them, they remain after a repair, and most of them are
caused by programs. Hardware faults show in the driver's state: Xid 48, 94 and 95 in the error count, 63 and 64 in the
remapped rows, 79 as a lost GPU, and others in the recommended recovery action
(https://docs.nvidia.com/deploy/xid-errors, https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt).
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from allranks.errors import counted

# nvml.h: enum nvmlReturn_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlDeviceGpuRecoveryAction_t.
_LOST: Final = 15
_RESET_REQUIRED: Final = 16
_UNCORRECTED: Final = 1
_SINCE_DRIVER_LOAD: Final = 0
_RECOVERY_ACTION: Final = 230
_RECOVERIES: Final = {
    1: "a reset",
    2: "a restart of the host",
    4: "a reset while nothing uses it",
    6: "a reset of its bus",
    7: "a restart of the host",
}
"""Actions 3 and 5 concern links between GPUs, and do not affect a GPU that works alone."""


class Nvml(Protocol):
    """The functions of NVIDIA's module ``pynvml`` that are used."""

    NVMLError: type[Exception]

    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802
    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any: ...  # noqa: ANN401, N802
    def nvmlDeviceGetUUID(self, handle: Any, /) -> str: ...  # noqa: ANN401, N802
    def nvmlDeviceGetName(self, handle: Any, /) -> str: ...  # noqa: ANN401, N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any, /) -> Any: ...  # noqa: ANN401, N802
    def nvmlDeviceGetMigMode(self, handle: Any, /) -> list[int]: ...  # noqa: ANN401, N802
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, /) -> int: ...  # noqa: ANN401, N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int, /) -> Any: ...  # noqa: ANN401, N802
    def nvmlDeviceGetRemappedRows(self, handle: Any, /) -> tuple[int, int, int, int]: ...  # noqa: ANN401, N802
    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any, /) -> int: ...  # noqa: ANN401, N802
    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int, /) -> int: ...  # noqa: ANN401, N802
    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[int], /) -> Any: ...  # noqa: ANN401, N802


def fault_of(nvml: Nvml, handle: Any) -> str:  # noqa: ANN401 - NVML's
    """The first hardware fault that the driver reports for a GPU; empty if it is healthy."""
    checks: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: _memory_rows(*nvml.nvmlDeviceGetRemappedRows(handle)),
        lambda: _memory_pages(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
        lambda: _errors(nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _SINCE_DRIVER_LOAD)),
        lambda: _recovery(nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])[0]),
    )
    for check in checks:
        try:
            found = next(check(), "")
        except nvml.NVMLError as error:  # usually, this GPU or driver does not support the function
            found = {_LOST: "the driver has lost it", _RESET_REQUIRED: "it needs a reset"}.get(
                getattr(error, "value", 0), ""
            )
        if found:
            return found
    return ""


def _memory_rows(_corrected: int, _uncorrected: int, pending: int, failure: int) -> Iterator[str]:
    if failure:
        yield "its memory has a defective row and no spare rows"
    if pending:
        yield "its memory has a defective row, which is replaced at its next reset"


def _memory_pages(pending: int) -> Iterator[str]:
    if pending:
        yield "its memory has a defective page, which is retired at its next reset"


def _errors(count: int) -> Iterator[str]:
    if count:
        yield f"its memory has had {counted(count, 'uncorrectable error')} since the driver was loaded"


def _recovery(field: Any) -> Iterator[str]:  # noqa: ANN401 - NVML's
    action = field.value.uiVal if field.nvmlReturn == 0 else 0
    if action in _RECOVERIES:
        yield f"the driver recommends {_RECOVERIES[action]}"
