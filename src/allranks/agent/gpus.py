"""GPUs in a job: queries without initializing CUDA, the hardware that a cell needs, and health checks.

The fork server and launchers must not initialize CUDA, because a process that has done so cannot fork ranks that use
CUDA. But modules of torch query GPUs at import: with Triton installed,
``torch.testing._internal.common_device_type``, which all of torch's own multi-process test cases import, gets the
compute capability. Here such queries run once, in a fork, and their results are cached. That includes the number of
GPUs: torch gets it from NVML, which does not initialize CUDA but leaves a thread and open devices behind (driver 580).

Health checks run in forks as well. A faulty device may raise an error, compute wrong numbers, kill the process that
uses it, or hang; that must not affect the job or be blamed on its tests.
"""

import ctypes
import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import distributed

from allranks.agent import linux
from allranks.agent.record_stream import Journal
from allranks.protocol.config import AgentConfig, GpuToCheck, share_of
from allranks.protocol.records import AgentFailed, FailureKind, GpuFailed, GpusChecked
from allranks.protocol.skip_codes import SkipCode, multi_gpu

_CHUNK: Final = 1 << 16

_DRIVER: Final = "libcuda.so.1"

_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The variables that decide which GPUs a process sees. A conftest file may change them between two queries."""

_EXIT_SECONDS: Final = 60.0
"""Seconds for a process to end after it has sent its result: the driver may take a while to release its resources."""


class GpuProperties(SimpleNamespace):
    """The properties of a GPU, with the attributes of torch's own object; ``uuid`` is a string."""


class _Queries:
    """Replacements for torch's GPU queries. In the process that must not initialize CUDA, they run the query in a fork.

    Attributes:
        process: The process that must not initialize CUDA; its forks may.
    """

    def __init__(self) -> None:
        self.process = 0
        self._results: dict[tuple[object, ...], Any] = {}  # by query, and by the visible GPUs
        self._device_count: Callable[[], int] = torch.cuda.device_count
        self._current_device: Callable[[], int] = torch.cuda.current_device
        self._properties: Callable[..., Any] = torch.cuda.get_device_properties

    def device_count(self) -> int:
        """The number of visible GPUs."""
        if not self._needs_fork() or not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            return self._device_count()
        count: int = self._result(self._device_count)
        return count

    def current_device(self) -> int:
        """The current GPU, which is the first one in a process that has not initialized CUDA."""
        return 0 if self._needs_fork() and torch.cuda.device_count() else self._current_device()

    def properties(self, device: torch.device | int | str | None) -> Any:  # noqa: ANN401 - torch's own object, or ours
        """The properties of a GPU."""
        if not self._needs_fork() or not torch.cuda.device_count():
            return self._properties(device)
        properties, index = self._result(self._all_properties), _index(device)
        if not 0 <= index < len(properties):
            msg = f"there is no GPU {index}: the number of GPUs is {len(properties)}"
            raise AssertionError(msg)  # as torch does
        return GpuProperties(**properties[index])

    def _all_properties(self) -> list[dict[str, Any]]:
        return [_values(self._properties(number)) for number in range(torch.cuda.device_count())]

    def _result(self, query: Callable[[], Any]) -> Any:  # noqa: ANN401 - of any query
        """The result of a query in a fork, cached for the visible GPUs."""
        key = (query, *map(os.environ.get, _VISIBLE))
        if key not in self._results:
            self._results[key] = _call_in_fork(query)
        return self._results[key]

    def _needs_fork(self) -> bool:
        """Whether this process must not initialize CUDA, and has not done so."""
        return os.getpid() == self.process and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _index(device: torch.device | int | str | None) -> int:
    if isinstance(device, int):
        return device
    named = torch.device("cuda" if device is None else device)
    if named.type != "cuda":
        msg = f"{named} is not a GPU"
        raise ValueError(msg)
    return named.index or 0


@functools.cache
def _queries() -> _Queries:
    """Replace torch's functions by those of :class:`_Queries`, once."""
    queries = _Queries()

    @functools.wraps(torch.cuda.device_count)
    def device_count() -> int:
        return queries.device_count()

    @functools.wraps(torch.cuda.current_device)
    def current_device() -> int:
        return queries.current_device()

    @functools.wraps(torch.cuda.get_device_properties)
    def get_device_properties(device: torch.device | int | str | None = None) -> Any:  # noqa: ANN401 - as above
        return queries.properties(device)

    torch.cuda.device_count = device_count
    torch.cuda.current_device = current_device
    torch.cuda.get_device_properties = get_device_properties
    return queries


def query_gpus_in_forks() -> None:
    """Make torch's queries of GPUs in this process, but not in its forks, work without initializing CUDA."""
    _queries().process = os.getpid()


def cuda_in_this_process() -> str:
    """How this process has initialized CUDA, so that its forks cannot use CUDA; empty if it has not.

    A library other than torch may have done so: torch's own test modules query GPUs with ``numba.cuda``.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "initializes CUDA"
    if not _is_driver_initialized():
        return ""
    if "numba.cuda" in sys.modules:
        return "initializes CUDA, as numba.cuda does to look for GPUs unless NUMBA_DISABLE_CUDA=1 is set"
    return "initializes CUDA through a library other than torch"


def _is_driver_initialized() -> bool:
    """Whether the driver's library is loaded and initialized; an uninitialized one returns errors."""
    try:
        driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    count = ctypes.c_int()
    status: int = driver.cuDeviceGetCount(ctypes.byref(count))
    return status == 0  # CUDA_SUCCESS (cuda.h)


def _call_in_fork(query: Callable[[], Any]) -> Any:  # noqa: ANN401 - of any query
    """The result of a query in a fork of this process, which has to be serializable as JSON."""
    pid, reader = linux.call_in_fork(lambda: _serialized(query))
    try:
        text = b"".join(iter(lambda: os.read(reader, _CHUNK), b""))
    finally:
        os.close(reader)
        linux.reap(pid, _EXIT_SECONDS)
    if not text:
        msg = "the process that queried the GPUs has crashed"
        raise RuntimeError(msg)
    result, error = json.loads(text)
    if error:
        raise RuntimeError(error)
    return result


def _serialized(query: Callable[[], object]) -> bytes:
    """The result and the error of a query as JSON."""
    try:
        return json.dumps([query(), ""]).encode()
    except Exception as error:  # noqa: BLE001 - raised again in the process that called the query
        traceback.print_exc()
        return json.dumps([None, str(error) or type(error).__name__]).encode()


def _values(properties: object) -> dict[str, Any]:
    names = [name for name in dir(properties) if not name.startswith("_")]
    values = ((name, getattr(properties, name)) for name in names)
    return {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values}


def missing_hardware(config: AgentConfig) -> tuple[SkipCode, str, int | None] | None:
    """The hardware that this host lacks: torch's skip code, a message, and the number of GPUs if these are missing."""
    present, required = _visible_gpus(), len(share_of(config.node, total=config.gpu_count, nodes=config.nodes))
    whose = "cell" if config.nodes == 1 else "cell's node"
    lacking = f"the {whose} needs {required} GPU{'s' * (required != 1)}, but this job can see only {present}"
    if not distributed.is_backend_available(config.backend):
        detail = f"this torch ({torch.__version__}) is built without {config.backend}"
        return SkipCode.BACKEND_UNAVAILABLE, detail if present >= required else f"{detail}, and {lacking}", None
    if present >= required:
        return None
    return SkipCode.NO_CUDA if present == 0 else multi_gpu(required), lacking, required


def _visible_gpus() -> int:
    # With PYTORCH_NVML_BASED_CUDA_CHECK=1 (the default in a job), is_available() only calls the patched device_count(),
    # so neither initializes CUDA here.
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


_MATRIX_SIZE: Final = 256
_HEALTHY: Final = b"healthy"
_LONGEST_ERROR: Final = 2000
"""Bytes of an error message, far below the size of a pipe's buffer."""

_KILL_SECONDS: Final = 2.0
"""Seconds for a killed process to end; one that is blocked in a driver does not, and is left behind."""


def compute(device: str, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.matmul) -> None:
    """Multiply two small matrices on a device, and compare the product with that of the CPU.

    The elements are small integers, so the product is exact for any order of additions, and in TF32.

    Raises:
        ArithmeticError: The products differ. torch raises any other error if the device cannot compute.
    """
    matrix = torch.arange(_MATRIX_SIZE * _MATRIX_SIZE, dtype=torch.float32).reshape(_MATRIX_SIZE, _MATRIX_SIZE) % 7
    expected = matrix @ matrix.T
    on_device = matrix.to(device)
    product = multiply(on_device, on_device.T).cpu()
    if not torch.equal(product, expected):
        wrong = int((product != expected).sum())
        msg = f"a matrix product is wrong in {wrong} of {product.numel()} elements"
        raise ArithmeticError(msg)


def check_gpus(gpus: Sequence[GpuToCheck], device: str, limit: float, journal: Journal) -> bool:
    """Check all GPUs at the same time, within `limit` seconds, and record the results; return whether all are healthy.

    If torch is built without GPU support, nothing is checked: the job's tests may fail or skip by themselves.
    """
    if device == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        return True
    began = time.monotonic()
    killed = linux.killed_for_memory()
    errors = errors_of_gpus(gpus, lambda: compute(device), limit)
    if linux.killed_for_memory() > killed:
        # A CUDA context takes several hundred MiB of memory: the devices are not to blame.
        message = "there is not enough memory to check the GPUs (limits.memory_mib)"
        journal.write(AgentFailed(message=message, kind=FailureKind.OUT_OF_MEMORY))
        return False
    healthy = [gpu.gpu for gpu in gpus if gpu.gpu not in errors]
    journal.write(GpusChecked(gpus=tuple(healthy), seconds=time.monotonic() - began))
    for gpu in gpus:
        if gpu.gpu in errors:
            journal.write(GpuFailed(gpu=gpu.gpu, name=gpu.name, message=errors[gpu.gpu]))
    return not errors


def errors_of_gpus(gpus: Sequence[GpuToCheck], work: Callable[[], None], limit: float) -> Mapping[str, str]:
    """The error of each GPU on which some work fails, by GPU id; `limit` seconds are for all of them together."""
    deadline = time.monotonic() + limit
    checks = [_start(gpu, work) for gpu in gpus]
    errors = {check.gpu: check.error(deadline, limit) for check in checks}
    return {gpu: error for gpu, error in errors.items() if error}


@dataclass(frozen=True)
class _Check:
    """A process that uses one GPU."""

    gpu: str
    pid: int
    reader: int  # of the pipe with its result

    def error(self, deadline: float, limit: float) -> str:
        """Wait for the result and return the error; empty if the GPU is healthy."""
        result = self._result(deadline)
        if result is None:
            linux.signal_process(self.pid, signal.SIGKILL)
            deadline = 0.0
        status = linux.reap(self.pid, max(_KILL_SECONDS, deadline - time.monotonic()))
        os.close(self.reader)
        if result is None:
            return f"it did not compute a result within {limit:g} s"
        if result:
            return "" if result == _HEALTHY else result.decode("utf-8", "replace")
        return f"the process that used it {_ending(status)}"

    def _result(self, deadline: float) -> bytes | None:
        """Its result, empty if it ended without one; None if the time is up."""
        if not linux.is_readable(self.reader, max(0.0, deadline - time.monotonic())):
            return None
        return os.read(self.reader, _LONGEST_ERROR)


def _ending(status: int | None) -> str:
    if status is None:
        return "does not end"
    return f"was killed by {linux.signal_name(-status)}" if status < 0 else f"ended with exit status {status}"


def _start(gpu: GpuToCheck, work: Callable[[], None]) -> _Check:
    pid, reader = linux.call_in_fork(lambda: _use(gpu, work))
    return _Check(gpu.gpu, pid, reader)


def _use(gpu: GpuToCheck, work: Callable[[], None]) -> bytes:
    # It sees no other GPU, so that any error belongs to this one.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = gpu.visible
    return error_of(work).encode()[:_LONGEST_ERROR] or _HEALTHY


def error_of(work: Callable[[], None]) -> str:
    """The error of some work on a GPU in one line, with its traceback on standard error; empty for none."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the device may cause any error
        traceback.print_exc()
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0] if lines else ''}"
    return ""
