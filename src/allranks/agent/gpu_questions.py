"""Answers torch's questions about GPUs in processes that must not initialize CUDA.

These are the fork server, and drivers: a process that has initialized CUDA cannot fork ranks that use it. Yet modules
of torch ask about GPUs when they are imported: with Triton installed, ``torch.testing._internal.common_device_type``
wants the compute capability, and every test case of torch's own classes imports it before it starts its ranks. Here
such a question is asked in a fork, once, and answered from what the fork reports.

The number of GPUs is such a question too. torch asks NVML for it, which initializes no CUDA, but with driver 580 it
leaves a thread and open devices behind.
"""

import ctypes
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

import torch

from allranks.agent import linux

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
    """What a fork of this process finds: the answer must be of JSON's types.

    Raises:
        RuntimeError: The fork has failed, for the reason that the message has.
    """
    pid, answer = linux.fork_to_answer(lambda: _answer(question))
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
