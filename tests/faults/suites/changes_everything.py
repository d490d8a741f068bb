"""A test leaves another folder, environment, random state and default type: the next one has a fresh gang."""

import os
import random
import sys
from pathlib import Path

import torch

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "isolation": "test",
    "seconds": 2,
}


def test_fault():
    os.chdir("/")
    os.environ["LEFT_BY_ANOTHER_TEST"] = "1"
    random.seed(1)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    sys.path.clear()


def test_that_finds_nothing_changed():
    assert Path.cwd() != Path("/")
    assert "LEFT_BY_ANOTHER_TEST" not in os.environ
    assert torch.initial_seed() != 1
    assert torch.get_default_dtype() is torch.float32
    assert sys.path
    state = random.getstate()
    random.seed(1)
    assert state != random.getstate()
