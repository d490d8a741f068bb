"""GPUs in a job: torch's questions about them, whether this host has those of the cell, and whether each computes.

The fork server, and drivers, must not initialize CUDA: a process that has cannot fork ranks that use it. Yet modules of
torch ask about GPUs when they are imported: with Triton installed, ``torch.testing._internal.common_device_type`` wants
the compute capability, and every test case of torch's own classes imports it before it starts its ranks. Here such a
question is asked in a fork, once, and answered from what the fork reports. The number of GPUs is such a question too.
torch asks NVML for it, which initializes no CUDA, but with driver 580 it leaves a thread and open devices behind.

Each check of a GPU runs in a fork, too. A sick device may raise, give wrong numbers, kill the process that uses it, or
never answer; none of that may affect the job or be blamed on its tests.
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
from typing import Any, Final

import torch
from torch import distributed

from allranks.agent import linux
from allranks.agent.record_stream import Journal
from allranks.protocol.config import AgentConfig, GpuToCheck, share_of
from allranks.protocol.records import AgentFailed, FailureKind, GpuFailed, GpusChecked
from allranks.protocol.skip_codes import SkipCode, multi_gpu

_PART: Final = 1 << 16

_DRIVER: Final = "libcuda.so.1"

_VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The variables that decide which GPUs a process sees: a conftest file may change them between two questions."""

_END: Final = 60.0
"""Seconds for a process that has answered to end: the driver may take a while to release what it held."""


class GpuProperties:
    """The properties of a GPU, with the attributes that torch's own object has; ``uuid`` is a text."""

    def __init__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)

    def __repr__(self) -> str:
        """All of them."""
        return f"GpuProperties({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class _Questions:
    """The questions, with torch's own answers to them, and the process in which these would initialize CUDA.

    Attributes:
        process: The process that must not initialize CUDA; its forks may.
    """

    def __init__(self) -> None:
        self.process = 0
        self._answers: dict[tuple[object, ...], Any] = {}  # by question, and by what is visible
        self._device_count: Callable[[], int] = torch.cuda.device_count
        self._current_device: Callable[[], int] = torch.cuda.current_device
        self._properties: Callable[..., Any] = torch.cuda.get_device_properties

    def device_count(self) -> int:
        """The number of GPUs that this process sees."""
        if not self._is_here() or not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            return self._device_count()
        count: int = self._answer_to(self._device_count)
        return count

    def current_device(self) -> int:
        """The GPU that is used by default: a process without CUDA has chosen no other than the first."""
        return 0 if self._is_here() and torch.cuda.device_count() else self._current_device()

    def properties(self, device: torch.device | int | str | None) -> Any:  # noqa: ANN401 - torch's own object, or ours
        """The properties of a GPU."""
        if not self._is_here() or not torch.cuda.device_count():
            return self._properties(device)
        of_all, index = self._answer_to(self._all_properties), _index(device)
        if not 0 <= index < len(of_all):
            msg = f"GPU {index} does not exist: there are {len(of_all)}"
            raise AssertionError(msg)  # as torch does
        return GpuProperties(of_all[index])

    def _all_properties(self) -> list[dict[str, Any]]:
        return [_values(self._properties(number)) for number in range(torch.cuda.device_count())]

    def _answer_to(self, question: Callable[[], Any]) -> Any:  # noqa: ANN401 - as the question answers
        """A fork's answer; it is asked once, and again if other GPUs are visible."""
        key = (question, *map(os.environ.get, _VISIBLE))
        if key not in self._answers:
            self._answers[key] = _ask(question)
        return self._answers[key]

    def _is_here(self) -> bool:
        """Whether this process must not initialize CUDA, and has not done so."""
        return os.getpid() == self.process and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _index(device: torch.device | int | str | None) -> int:
    if isinstance(device, int):
        return device
    named = torch.device("cuda" if device is None else device)
    if named.type != "cuda":
        msg = f"{named} is no GPU"
        raise ValueError(msg)
    return named.index or 0


@functools.cache
def _questions() -> _Questions:
    """The questions, which torch asks from the first call on."""
    questions = _Questions()

    @functools.wraps(torch.cuda.device_count)
    def device_count() -> int:
        return questions.device_count()

    @functools.wraps(torch.cuda.current_device)
    def current_device() -> int:
        return questions.current_device()

    @functools.wraps(torch.cuda.get_device_properties)
    def get_device_properties(device: torch.device | int | str | None = None) -> Any:  # noqa: ANN401 - as above
        return questions.properties(device)

    torch.cuda.device_count = device_count
    torch.cuda.current_device = current_device
    torch.cuda.get_device_properties = get_device_properties
    return questions


def answer_without_cuda() -> None:
    """From now on, have this process answer questions about GPUs without initializing CUDA; its forks may."""
    _questions().process = os.getpid()


def cuda_in_this_process() -> str:
    """How this process has initialized CUDA, after which no fork of it can use CUDA; empty if it has not.

    Any library may have, and torch does not know of it: its own test modules ask ``numba.cuda`` for GPUs.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "initializes CUDA"
    if not _is_driver_initialized():
        return ""
    if "numba.cuda" in sys.modules:
        return "initializes CUDA, as numba.cuda does to look for GPUs unless NUMBA_DISABLE_CUDA=1 is set"
    return "initializes CUDA through a library other than torch"


def _is_driver_initialized() -> bool:
    """Whether the driver's library answers, if it is loaded: an uninitialized one refuses all questions."""
    try:
        driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    count = ctypes.c_int()
    answer: int = driver.cuDeviceGetCount(ctypes.byref(count))
    return answer == 0  # CUDA_SUCCESS (cuda.h)


def _ask(question: Callable[[], Any]) -> Any:  # noqa: ANN401 - as the question answers
    """What a fork of this process finds: the answer must be of JSON's types."""
    pid, answer = linux.call_in_fork(lambda: _answer(question))
    try:
        text = b"".join(iter(lambda: os.read(answer, _PART), b""))
    finally:
        os.close(answer)
        linux.reap(pid, _END)
    if not text:
        msg = "the process that asked about the GPUs has crashed"
        raise RuntimeError(msg)
    found, error = json.loads(text)
    if error:
        raise RuntimeError(error)
    return found


def _answer(question: Callable[[], object]) -> bytes:
    """The answer, and the error that there was instead, as JSON."""
    try:
        return json.dumps([question(), ""]).encode()
    except Exception as error:  # noqa: BLE001 - it is raised where the question was asked
        traceback.print_exc()
        return json.dumps([None, str(error) or type(error).__name__]).encode()


def _values(properties: object) -> dict[str, Any]:
    names = [name for name in dir(properties) if not name.startswith("_")]
    values = ((name, getattr(properties, name)) for name in names)
    return {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values}


def missing_hardware(config: AgentConfig) -> tuple[SkipCode, str, int | None] | None:
    """What the host lacks: torch's skip code, details, and how many GPUs it should have, if it lacks GPUs."""
    present, asked = _visible_gpus(), len(share_of(config.node, total=config.gpu_count, nodes=config.nodes))
    whose = "cell" if config.nodes == 1 else "cell's node"
    lacking = f"the {whose} asks for {asked} GPUs, this job sees {present}"
    if not distributed.is_backend_available(config.backend):
        detail = f"this torch ({torch.__version__}) is built without {config.backend}"
        return SkipCode.BACKEND_UNAVAILABLE, detail if present >= asked else f"{detail}, and {lacking}", None
    if present >= asked:
        return None
    return SkipCode.NO_CUDA if present == 0 else multi_gpu(asked), lacking, asked


def _visible_gpus() -> int:
    # Both calls are answered by a fork, as PYTORCH_NVML_BASED_CUDA_CHECK makes one ask the other.
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


_SIZE: Final = 256
_WELL: Final = b"well"
_WORDS: Final = 2000
"""Bytes of an error message, far below the size of a pipe's buffer."""

_AFTER_KILL: Final = 2.0
"""Seconds for a killed process to end; one that a driver holds in the kernel does not, and is left behind."""


def compute(device: str, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.matmul) -> None:
    """Multiply two small matrices on a device, and compare the product with the CPU's.

    The numbers are small integers, so the product is exact in any order of additions, and in TF32. An ArithmeticError
    says that the products differ; torch raises anything if the device cannot compute.
    """
    numbers = torch.arange(_SIZE * _SIZE, dtype=torch.float32).reshape(_SIZE, _SIZE) % 7
    expected = numbers @ numbers.T
    there = numbers.to(device)
    found = multiply(there, there.T).cpu()
    if not torch.equal(found, expected):
        wrong = int((found != expected).sum())
        msg = f"{wrong} of the {found.numel()} numbers of a product of two matrices are wrong"
        raise ArithmeticError(msg)


def check_gpus(gpus: Sequence[GpuToCheck], device: str, limit: float, journal: Journal) -> bool:
    """Check all GPUs at the same time and record the results; True if all of them compute.

    A torch built without support for them checks none: the job's tests may fail or skip on their own. All of them
    together get `limit` seconds.
    """
    if device == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        return True
    began = time.monotonic()
    killed = linux.killed_for_memory()
    troubles = troubles_of(gpus, lambda: compute(device), limit)
    if linux.killed_for_memory() > killed:
        # A CUDA context takes some hundred MiB of memory: running out of it is no fault of the device.
        message = f"there is not enough memory to try {len(gpus)} GPUs (limits.memory_mib)"
        journal.write(AgentFailed(message=message, kind=FailureKind.OUT_OF_MEMORY))
        return False
    well = [gpu.gpu for gpu in gpus if gpu.gpu not in troubles]
    journal.write(GpusChecked(gpus=tuple(well), seconds=time.monotonic() - began))
    for gpu in gpus:
        if gpu.gpu in troubles:
            journal.write(GpuFailed(gpu=gpu.gpu, name=gpu.name, message=troubles[gpu.gpu]))
    return not troubles


def troubles_of(gpus: Sequence[GpuToCheck], work: Callable[[], None], limit: float) -> Mapping[str, str]:
    """The error of each GPU on which the work fails, by its id; all of them together get `limit` seconds."""
    deadline = time.monotonic() + limit
    checks = [_start(gpu, work) for gpu in gpus]
    troubles = {check.gpu: check.end(deadline, limit) for check in checks}
    return {gpu: trouble for gpu, trouble in troubles.items() if trouble}


@dataclass(frozen=True)
class _Check:
    """A process that tries one GPU."""

    gpu: str
    pid: int
    answer: int  # the reading end of the pipe that carries its result

    def end(self, deadline: float, limit: float) -> str:
        """Wait for the result: the error, empty if the GPU computes."""
        result = self._result(deadline)
        if result is None:
            linux.signal_process(self.pid, signal.SIGKILL)
        status = self._status(deadline if result is not None else 0.0)
        os.close(self.answer)
        if result is None:
            return f"it has not computed anything within {limit:g} s"
        if result:
            return "" if result == _WELL else result.decode("utf-8", "replace")
        return f"the process that used it {_ending(status)}"

    def _result(self, deadline: float) -> bytes | None:
        """Its answer, empty if it ended without one; None if the time is up."""
        if not linux.is_readable(self.answer, max(0.0, deadline - time.monotonic())):
            return None
        return os.read(self.answer, _WORDS)

    def _status(self, deadline: float) -> int | None:
        return linux.reap(self.pid, max(_AFTER_KILL, deadline - time.monotonic()))


def _ending(status: int | None) -> str:
    if status is None:
        return "does not end"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def _start(gpu: GpuToCheck, work: Callable[[], None]) -> _Check:
    pid, answer = linux.call_in_fork(lambda: _try(gpu, work))
    return _Check(gpu.gpu, pid, answer)


def _try(gpu: GpuToCheck, work: Callable[[], None]) -> bytes:
    # It sees no other GPU, so any failure is this one's.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = gpu.visible
    return trouble_of(work).encode()[:_WORDS] or _WELL


def trouble_of(work: Callable[[], None]) -> str:
    """The error of some work on a GPU, in one line, with its traceback on standard error; empty for none."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - any failure is the device's
        traceback.print_exc()
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0] if lines else ''}"
    return ""
