"""Ranks are forks of a process that has imported this module and has never initialised CUDA: both are counted."""

import os
from pathlib import Path

import pytest
import torch
from gpu_acceptance import notes
from gpu_acceptance.counter import count_calls
from gpu_acceptance.device import device as make_gpu

GPU = make_gpu()
IMPORTED_BY = os.getpid()
INITIALISATIONS = count_calls(*GPU.initialiser)
CAPABILITY = torch.cuda.get_device_capability()  # as modules of torch ask when they are imported


@pytest.mark.parametrize("gang", range(2))
def test_a_fresh_rank_initialises_cuda_and_its_agent_has_not(gang, rank, request):
    before = INITIALISATIONS.here
    device = request.getfixturevalue("device")
    assert torch.ones(1000, device=device).sum().item() == 1000
    assert before == 0
    assert INITIALISATIONS.here > 0
    assert torch.cuda.get_device_capability() == CAPABILITY
    assert INITIALISATIONS.in_importer == 0
    assert not opens_cuda(IMPORTED_BY)
    counts = {"in_agent": INITIALISATIONS.in_importer, "in_rank": INITIALISATIONS.here}
    notes.leave("fork", rank=rank, gang=gang, imported_by=IMPORTED_BY, **counts)


def opens_cuda(pid):
    """True if a process has the device open through which CUDA, and not NVML, takes memory."""
    try:
        return any("nvidia-uvm" in str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it is not dumpable, or a descriptor was closed meanwhile
        return False
