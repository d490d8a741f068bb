"""Whether this host can run the cell at all, asked before any process group and without touching CUDA."""

import torch
from torch import distributed

from allranks.harness.config import AgentConfig
from allranks.testing.skipcodes import SkipCode, multi_gpu, reason


def missing_hardware(config: AgentConfig) -> tuple[SkipCode, str] | None:
    """The first of torch's skip codes that fits what the host lacks for the cell, and why; None if it lacks nothing."""
    if not distributed.is_backend_available(config.backend):
        code = SkipCode.BACKEND_UNAVAILABLE
        return code, f"{reason(code)} This torch ({torch.__version__}) was built without {config.backend}."
    return _missing_gpus(config.gpu_count)


def _missing_gpus(wanted: int) -> tuple[SkipCode, str] | None:
    # With PYTORCH_NVML_BASED_CUDA_CHECK both calls ask NVML and leave CUDA uninitialised, so forks stay clean.
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if present >= wanted:
        return None
    code = SkipCode.NO_CUDA if present == 0 else multi_gpu(wanted)
    return code, f"{reason(code)} The cell asks for {wanted} GPUs, this job sees {present}."
