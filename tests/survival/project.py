"""The repository that is run while things go wrong: gloo cells over three init methods, two suites, leased GPUs.

What becomes of each of its tests is known beforehand, so a report that says anything else has been led astray.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

GPUS: Final = ("GPU-survival-0", "GPU-survival-1", "GPU-survival-2")
"""What jobs may lease; a stand-in for NVIDIA's hook gives them to containers."""

MEMORY_MIB: Final = 700
"""Of a container: enough for an agent and two ranks, and soon eaten."""

EATER: Final = "SURVIVAL_EATER"
"""The variable that names the test which eats all memory."""

_MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]
gpu_count = [0, 1]
init_method = ["env", "tcp", "file"]
nodes = {nodes}

[[matrix.exclude]]
when = "gpu_count == 1 and (init_method == 'env' or nodes > 1)"
reason = "one init method without GPUs"

[[matrix.exclude]]
when = "gpu_count == 0 and init_method != 'env'"
reason = "two with one"

[suites.kept]
path = "kept"
isolation = "job"
when = "init_method != 'file'"

[suites.fresh]
path = "fresh"
isolation = "test"
when = "init_method != 'tcp'"

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]

[process]
python = {python}

[limits]
process_group = 10
test = 15
job = {job}
peer_grace = 1
silence = 8
memory_mib = {memory}
{eater}"""

_SLURM = """
[slurm]
spool = {spool}
jobs = 2
"""

_EATER_RULE = """
[[env]]
when = "init_method == '{init_method}'"
set = {{ {variable} = "{test}" }}
"""

_CONFTEST = """\
import os

import pytest
import torch

# The GPUs are names: what counts is who holds them.
NAMES = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("NVIDIA_VISIBLE_DEVICES") or ""
LEASED = [gpu for gpu in NAMES.split(",") if gpu]
torch.cuda.is_available = lambda: bool(LEASED)
torch.cuda.device_count = lambda: len(LEASED)


@pytest.fixture(autouse=True)
def eater(request, rank):
    if os.environ.get("SURVIVAL_EATER") == request.node.name and rank == 1:
        eaten = []
        while True:
            eaten.append(bytearray(os.urandom(1 << 20)) * 16)
"""

_SUITE = """\
import time

import pytest
import torch
import torch.distributed as dist


@pytest.mark.parametrize("number", range({count}))
def test_good(number, rank):
    tensor = torch.full((8,), float(rank))
    dist.all_reduce(tensor)
    time.sleep(0.1)
    assert tensor.tolist() == [1.0] * 8


def test_skipped():
    pytest.skip("as planned")


def test_red_on_rank_1(rank):
    assert rank == 0
"""

COUNTS: Final[Mapping[str, int]] = {"kept": 6, "fresh": 3}
"""The good tests of each suite."""

WANTED: Final[Mapping[str, Mapping[str, str]]] = {
    suite: {
        **{f"{suite}/test_{suite}.py::test_good[{number}]": "0-1:passed" for number in range(count)},
        f"{suite}/test_{suite}.py::test_skipped": "0-1:skipped",
        f"{suite}/test_{suite}.py::test_red_on_rank_1": "0:passed 1:failed",
    }
    for suite, count in COUNTS.items()
}
"""By suite, what each rank of each of its tests comes to, as ``report.json`` has it."""

CODE: Final = 1
"""The exit code of a run that nothing disturbs: a test fails in it."""


def write_project(
    folder: Path, *, spans_nodes: bool = False, eats: tuple[str, str] | None = None, spool: Path | None = None
) -> None:
    """Write it into a new folder.

    Args:
        folder: Where.
        spans_nodes: Whether a cell has two nodes, and with them a network in containers.
        eats: An init method, and the test that eats all memory in its cells.
        spool: The folder of a cluster's jobs.
    """
    rule = _EATER_RULE.format(init_method=eats[0], variable=EATER, test=eats[1]) if eats else ""
    matrix = _MATRIX.format(
        nodes="[1, 2]" if spans_nodes else "[1]",
        python=json.dumps(sys.executable),
        memory=MEMORY_MIB,
        eater=rule,
        job=240 if spool else 90,
    )
    folder.mkdir(parents=True)
    if spool is not None:
        matrix += _SLURM.format(spool=json.dumps(str(spool)))
    (folder / "matrix.toml").write_text(matrix)
    for suite, count in COUNTS.items():
        (folder / suite).mkdir()
        (folder / suite / "conftest.py").write_text(_CONFTEST)
        (folder / suite / f"test_{suite}.py").write_text(_SUITE.format(count=count))
