"""Holds a leased GPU until it is told to let go; ``HOLD`` says how."""

import os
import time
from pathlib import Path

import torch
from gpu_acceptance import notes
from gpu_acceptance.device import device as make_gpu


def test_holding(device):
    assert torch.ones(1000, device=device).sum().item() == 1000
    gpu = make_gpu()
    facts = {"gpus": [gpu.uuid(number) for number in range(gpu.count())]}
    if os.environ["HOLD"] == "kernel":
        gpu.spin()
        notes.leave("began", **facts)
        gpu.wait()
    notes.leave("began", **facts)
    until = Path(os.environ["HOLD"])
    while not until.exists():
        time.sleep(0.02)
    notes.leave("ended", **facts)
