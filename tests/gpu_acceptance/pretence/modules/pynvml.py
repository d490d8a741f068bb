"""In the place of NVIDIA's bindings: the tests' own NVML (``tests/schedule/fake_nvml.py``), with the pretended GPUs."""

import os

from gpu_acceptance.pretence import PRETENDS

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6


class NVMLError(Exception):
    """NVIDIA's error, with its number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


from fake_nvml import FakeDevice, FakeNvml  # noqa: E402 - it takes the names above from this module

_nvml = FakeNvml([FakeDevice(uuid=gpu) for gpu in os.environ[PRETENDS].split(",")])


def __getattr__(name: str) -> object:
    return getattr(_nvml, name)
