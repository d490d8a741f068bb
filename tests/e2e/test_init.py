"""``allranks init`` and the run that it promises, on the process engine."""

import subprocess
import sys
from pathlib import Path

import pytest
from long_lists import quick

EXISTING = {
    "pyproject.toml": "[project]\nname = 'x'\nversion = '1'\n[tool.pytest.ini_options]\naddopts = '-n auto'\n",
    "x.py": "",
    "requirements.txt": "numpy\n",
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef rank_of_mine(rank):\n    return rank\n",
    "tests/test_old.py": "def test_of_old(): raise AssertionError('not in the suite')\n",
}


GROUP = """\
import os, pytest, torch, torch.distributed as dist

@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()

def test_of_torchrun():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == int(os.environ["WORLD_SIZE"])
"""
SPAWN = """\
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    dist.barrier()

def test_of_spawn(tmp_path):
    mp.spawn(work, args=(tmp_path / "store",), nprocs=2)
"""
CLASS = """\
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class SumTest(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_of_class(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        dist.barrier()
"""
STYLES = {"tests/test_group.py": GROUP, "tests/test_spawn.py": SPAWN, "tests/test_class.py": CLASS}


@pytest.mark.parametrize(
    ("files", "tests"),
    quick(
        1,
        [
            ({}, {"test_all_reduce_sums_over_ranks"}),
            (EXISTING, {"test_all_reduce_sums_over_ranks"}),
            (STYLES, {"test_of_torchrun", "test_of_spawn", "test_of_class"}),
        ],
    ),
    ids=["empty", "with tests", "with tests of every style"],
)
def test_what_init_writes_runs_at_once(launch, tmp_path, monkeypatch, files, tests):
    folder = tmp_path / "repository"
    (folder / "tests").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    for command in ("init", "plan"):
        subprocess.run([sys.executable, "-m", "allranks", command], cwd=folder, check=True, timeout=60)
    done = launch(folder, "--engine", "process")
    assert done.code == 0, done.output
    assert set(done.cases) == tests
