"""In the place of NVIDIA's bindings: the tests' own NVML (``tests/runner/fake_nvml.py``), with the pretended GPUs."""

import os

from gpu_acceptance.pretence import PRETENDS

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230


class NVMLError(Exception):
    """NVIDIA's error, with its number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


from fake_nvml import FakeDevice, FakeNvml  # noqa: E402 - it takes the names above from this module

_nvml = FakeNvml([FakeDevice(uuid=gpu) for gpu in os.environ[PRETENDS].split(",")])


def __getattr__(name: str) -> object:
    return getattr(_nvml, name)
