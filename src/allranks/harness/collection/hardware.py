"""Whether this host can run the cell at all, asked before any process group and without touching CUDA."""

import torch
from torch import distributed

from allranks.harness.config import AgentConfig, share_of
from allranks.testing.skips.skipcodes import SkipCode, multi_gpu


def missing_hardware(config: AgentConfig) -> tuple[SkipCode, str] | None:
    """The first of torch's skip codes that fits what the host lacks for the cell, and the detail; None if nothing."""
    present, asked = _visible_gpus(), len(share_of(config.node, total=config.gpu_count, nodes=config.nodes))
    whose = "cell" if config.nodes == 1 else "cell's node"
    lacking = f"the {whose} asks for {asked} GPUs, this job sees {present}"
    if not distributed.is_backend_available(config.backend):
        detail = f"this torch ({torch.__version__}) is built without {config.backend}"
        return SkipCode.BACKEND_UNAVAILABLE, detail if present >= asked else f"{detail}, and {lacking}"
    if present >= asked:
        return None
    return SkipCode.NO_CUDA if present == 0 else multi_gpu(asked), lacking


def _visible_gpus() -> int:
    # With PYTORCH_NVML_BASED_CUDA_CHECK both calls ask NVML and leave CUDA uninitialised, so forks stay clean.
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
