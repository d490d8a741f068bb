"""Whether this host has the GPUs of a cell, and whether each of them computes.

Each check runs in a fork of the fork server, which itself never touches CUDA. A sick device may raise, give wrong
numbers, kill the process that uses it, or never answer; none of that may affect the job or be blamed on its tests.
"""

import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import distributed

from allranks.agent import linux
from allranks.agent.record_stream import Journal
from allranks.protocol.config import AgentConfig, GpuToCheck, share_of
from allranks.protocol.records import AgentFailed, FailureKind, GpuFailed, GpusChecked
from allranks.protocol.skip_codes import SkipCode, multi_gpu


def missing_hardware(config: AgentConfig) -> tuple[SkipCode, str, int | None] | None:
    """What the host lacks: the first of torch's skip codes, details, and the number of GPUs that were asked for.

    Returns:
        None if it lacks nothing; the number is None if GPUs are not what it lacks.
    """
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
    # Both calls are answered by a fork (gpu_questions), as PYTORCH_NVML_BASED_CUDA_CHECK makes one ask the other.
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


_SIZE: Final = 256
_WELL: Final = b"well"
_WORDS: Final = 2000
"""Bytes of an error message, far below the size of a pipe's buffer."""

_AFTER_KILL: Final = 2.0
"""Seconds for a killed process to end; one that a driver holds in the kernel does not, and is left behind."""


def compute(device: str, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.matmul) -> None:
    """Multiply two small matrices on a device, and compare the product with the CPU's.

    The numbers are small integers, so the product is exact in any order of additions, and in TF32.

    Args:
        device: torch's name of the device, or of its type, which stands for the first of that type.
        multiply: The operation to try.

    Raises:
        ArithmeticError: The products differ.
        Exception: Whatever torch raises if the device cannot compute.
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
    pid, answer = linux.fork_to_answer(lambda: _try(gpu, work))
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
