"""``allranks run --inside``: which processes may use it, and real processes of a launcher that become one run."""

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

import allranks as package
from allranks.protocol.launcher_variables import LAUNCHERS

SUITE = """
import os, pathlib, time
import torch, torch.distributed as dist

def test_sum(process_group, rank):
    there = torch.tensor([rank])
    dist.all_reduce(there)
    assert there == 1
    with open(os.environ["MARKS"], "a") as file:
        file.write(f"{os.environ['WHO']}\\n")
    time.sleep(float(os.environ["NAP"]))
"""

MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]
nodes = [1, 2]

[suites.tiny]
path = "suite"

[images.cpu]
torch = "{torch}"

[limits]
silence = 3
assembly = 30

[process]
python = "{python}"
"""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Nothing of a launcher that runs these tests."""
    for launcher in LAUNCHERS:
        for name in (launcher.rank, launcher.world_size, launcher.local_rank):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("repository")
def test_a_process_without_a_launcher_is_told_how_to_start_it(allranks, runs):
    code, _, err = allranks("run", "--inside")
    assert (code, runs) == (2, [])
    assert "srun --ntasks-per-node=1 allranks run --inside" in err


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("flags", [["--engine", "docker"], ["--engine", "slurm"], ["--pdb-rank", "0"]])
def test_options_that_need_another_place_are_refused(allranks, runs, monkeypatch, flags):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert (allranks("run", "--inside", *flags)[0], runs) == (2, [])


def test_one_process_alone_runs_as_any_other(allranks, runs, monkeypatch, repository):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert allranks("run", "--inside")[0] == 0
    [(_, options)] = runs
    assert (options.engine.name, options.engine.nodes) == ("process", 1)
    assert not (repository / "results").exists()


@pytest.mark.usefixtures("repository")
def test_several_processes_are_told_of_the_option(allranks, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "allranks run --inside" in allranks("run")[2]


@pytest.fixture
def launch(tmp_path):
    """``launch(*arguments, nap=0)``: two processes of Open MPI's, each as if on a node of its own."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "test_tiny.py").write_text(SUITE)
    (tmp_path / "matrix.toml").write_text(MATRIX.format(python=sys.executable, torch=version("torch")))
    processes = []

    def start(*arguments, nap=0):
        for rank in "01":
            variables = {
                **os.environ,
                **dict.fromkeys(("OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK"), "0"),
                "OMPI_COMM_WORLD_RANK": rank,
                "OMPI_COMM_WORLD_SIZE": "2",
                "PYTHONPATH": str(Path(package.__file__).parents[1]),
                "MARKS": str(tmp_path / "marks"),
                "WHO": f"node {rank}",
                "NAP": str(nap),
            }
            command = [sys.executable, "-m", "allranks", "run", "--inside", *arguments]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=variables, **pipes))
        return processes

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ends(processes):
    outputs = [process.communicate(timeout=90)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def marks(folder):
    path = folder / "marks"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def wait_until_ranks_run(folder, processes):
    deadline = time.monotonic() + 60
    while len(marks(folder)) < 2:
        assert time.monotonic() < deadline
        assert [process.poll() for process in processes] == [None, None]
        time.sleep(0.05)


def remains(folder):
    """What a launch may not leave: its folder, and processes that have its variables."""
    mine = f"MARKS={folder / 'marks'}".encode()
    there = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            there += [path.parent.name] if mine in path.read_bytes() else []
        except OSError:
            continue
    return there, [path.name for path in (folder / "results").glob(".inside-*")]


def test_processes_of_two_nodes_are_one_run_with_one_report(launch, tmp_path):
    codes, (out, other) = ends(launch())
    assert (codes, other) == ([0, 0], ""), out
    assert "exit code 0: no test failed" in out
    # The cell of one node runs on that of process 0; each node of the other cell is one of the launcher's.
    assert marks(tmp_path) == ["node 0", "node 0", "node 0", "node 1"]
    assert len(list((tmp_path / "results").glob("*/junit.xml"))) == 2, "the run's and its link's"
    assert remains(tmp_path) == ([], [])


@pytest.mark.thorough
def test_a_signal_to_all_processes_ends_all_of_them(launch, tmp_path):
    processes = launch("--where", "nodes=2", nap=60)
    wait_until_ranks_run(tmp_path, processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert ends(processes)[0] == [130, 130]
    assert remains(tmp_path) == ([], [])


@pytest.mark.thorough
def test_processes_end_when_process_0_was_killed(launch, tmp_path):
    processes = launch("--where", "nodes=2", nap=60)
    wait_until_ranks_run(tmp_path, processes)
    processes[0].kill()
    codes, outputs = ends(processes)
    assert codes == [-signal.SIGKILL, 4]
    assert "Process 0 of the launcher is gone: it sent no heartbeat for 3 s (limits.silence)." in outputs[1]
    deadline = time.monotonic() + 20
    while remains(tmp_path) != ([], []):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_cells_of_more_nodes_than_the_launcher_has_are_refused(launch, tmp_path):
    matrix = tmp_path / "matrix.toml"
    matrix.write_text(matrix.read_text().replace("world_size = [2]\nnodes = [1, 2]", "world_size = [3]\nnodes = [3]"))
    codes, (out, other) = ends(launch())
    assert (codes, other) == ([2, 2], "")
    assert "The 2 available nodes are too few" in out


@pytest.mark.thorough
def test_a_node_whose_process_was_killed_is_infrastructure(launch, tmp_path):
    processes = launch("--where", "nodes=2", nap=60)
    wait_until_ranks_run(tmp_path, processes)
    processes[1].kill()
    codes, (out, _) = ends(processes)
    assert codes == [4, -signal.SIGKILL]
    assert "The job was terminated from outside on" in out
    assert remains(tmp_path) == ([], [])
