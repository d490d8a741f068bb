"""Answers torch's questions about GPUs in processes that must not initialize CUDA.

These are the fork server, and drivers: a process that has initialized CUDA cannot fork ranks that use it. Yet modules
of torch ask about GPUs when they are imported: with Triton installed, ``torch.testing._internal.common_device_type``
wants the compute capability, and every test case of torch's own classes imports it before it starts its ranks. Here
such a question is asked in a fork, once, and answered from what the fork reports.
"""

import functools
import json
import os
import traceback
from collections.abc import Callable
from typing import Any, Final

import torch

from allranks.agent import linux

_PART: Final = 1 << 16

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
        answers: The properties of each GPU, once a fork has reported them.
    """

    def __init__(self) -> None:
        self.process = 0
        self.answers: list[GpuProperties] = []
        self._current_device: Callable[[], int] = torch.cuda.current_device
        self._properties: Callable[..., Any] = torch.cuda.get_device_properties

    def current_device(self) -> int:
        """The GPU that is used by default: a process without CUDA has chosen no other than the first."""
        return 0 if self._is_here() else self._current_device()

    def properties(self, device: torch.device | int | str | None) -> Any:  # noqa: ANN401 - torch's own object, or ours
        """The properties of a GPU."""
        if not self._is_here():
            return self._properties(device)
        if not self.answers:
            self.answers = _ask(self._properties, torch.cuda.device_count())
        index = _index(device)
        if not 0 <= index < len(self.answers):
            msg = f"GPU {index} does not exist: there are {len(self.answers)}"
            raise AssertionError(msg)  # as torch does
        return self.answers[index]

    def _is_here(self) -> bool:
        """Whether this process must not initialize CUDA, and has not done so, and there are GPUs to ask about."""
        if os.getpid() != self.process or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False
        return torch.cuda.device_count() > 0


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

    @functools.wraps(torch.cuda.current_device)
    def current_device() -> int:
        return questions.current_device()

    @functools.wraps(torch.cuda.get_device_properties)
    def get_device_properties(device: torch.device | int | str | None = None) -> Any:  # noqa: ANN401 - as above
        return questions.properties(device)

    torch.cuda.current_device = current_device
    torch.cuda.get_device_properties = get_device_properties
    return questions


def answer_without_cuda() -> None:
    """From now on, have this process answer questions about GPUs without initializing CUDA; its forks may."""
    _questions().process = os.getpid()


def _ask(properties: Callable[[int], object], count: int) -> list[GpuProperties]:
    """The properties of the first GPUs, as a fork of this process finds them.

    Raises:
        RuntimeError: The fork has failed, for the reason that the message has.
    """
    pid, answer = linux.fork_to_answer(lambda: _answer(properties, count))
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
    return [GpuProperties(values) for values in found]


def _answer(properties: Callable[[int], object], count: int) -> bytes:
    """The properties, and the error that there was instead, as JSON."""
    try:
        return json.dumps([[_values(properties(number)) for number in range(count)], ""]).encode()
    except Exception as error:  # noqa: BLE001 - it is raised where the question was asked
        traceback.print_exc()
        return json.dumps([[], str(error) or type(error).__name__]).encode()


def _values(properties: object) -> dict[str, Any]:
    names = [name for name in dir(properties) if not name.startswith("_")]
    values = ((name, getattr(properties, name)) for name in names)
    return {name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values}
