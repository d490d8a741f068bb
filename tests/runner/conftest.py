"""A small matrix, its jobs, a run's folder, and a scripted engine."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for scripted_engine, which pytest's importlib mode does not find

from scripted_engine import ScriptedEngine

from allranks.engines.base import JobEnvironment
from allranks.engines.gpus import Inventory
from allranks.matrix.declaration import load
from allranks.matrix.expand import expand
from allranks.matrix.jobs import plan
from allranks.matrix.model import Job, Matrix
from allranks.report.run_files import Manifest
from allranks.runner.attempt_runner import AttemptRunner
from allranks.runner.dispatcher import Dispatcher
from allranks.runner.host import Host
from allranks.runner.listener import RunListener
from allranks.runner.results_folder import RunFolder, open_run
from allranks.runner.retry_policy import RunPolicy

DOCUMENT = """\
[matrix]
backend = ["gloo", "nccl"]
world_size = [1, 2]
gpu_count = [0, 1, 2]

[[matrix.exclude]]
when = "backend == 'nccl' and gpu_count != world_size"
reason = "a GPU for each rank"

[[matrix.exclude]]
when = "backend == 'gloo' and gpu_count > 0"
reason = "gloo is tested on CPU tensors"

[suites.tiny]
path = "suite"
files = ["data"]
pytest_args = ["--strict-markers"]

[images.cpu]
when = "gpu_count == 0"
torch = "2.13.0"

[images.cuda]
when = "gpu_count > 0"
torch = "2.14.1"

[limits]
process_group = 10
test = 20
job = 30
memory_mib = 777

[[env]]
when = "backend == 'nccl'"
set = { NCCL_DEBUG = "WARN" }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with a matrix file and its suite."""
    folder = tmp_path / "repository"
    (folder / "suite").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "suite" / "test_tiny.py").write_text("")
    (folder / "matrix.toml").write_text(DOCUMENT)
    return folder


@pytest.fixture
def matrix(repository: Path) -> Matrix:
    """The loaded matrix."""
    return load(repository).matrix


@pytest.fixture
def jobs(matrix: Matrix) -> dict[str, Job]:
    """Every job of the matrix, by the id of its cell."""
    return {job.cell.id: job for job in plan(matrix, expand(matrix).cells)}


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., RunFolder]:
    """Create the folder of a run."""

    def make(jobs: object = (), *, run_id: str = "r1", seed: int | None = 7) -> RunFolder:
        return open_run(tmp_path / "results", run_id, jobs, Manifest(run_id="", command="allranks run"), seed)

    return make


@pytest.fixture
def engine():
    """An engine without a script."""
    return ScriptedEngine()


def environment_of_image(job):
    """The environment of a job, without building its image."""
    return JobEnvironment(image=job.image.name)


@pytest.fixture
def dispatcher(matrix, make_folder, engine, lines):
    """Create a dispatcher for some jobs, on a host with these resources."""

    def make(
        planned, *, gpus=(), cores=1, most_jobs=None, environment_of=environment_of_image, durations=None, **policy
    ):
        engine.has_queue, engine.most_jobs = most_jobs is not None, most_jobs
        host = Host(
            engine=engine,
            cores=cores,
            memory=4000,
            environment_of=environment_of,
            inventory=Inventory(gpus=gpus),
        )
        folder = replace(make_folder(planned), durations=durations or {})
        return Dispatcher(AttemptRunner(matrix, host, folder, RunListener(lines), ("-k", "x"), RunPolicy(**policy)))

    return make


@pytest.fixture
def records(tmp_path):
    """The records of a run by cell, read from its files."""

    def read():
        found = (tmp_path / "results" / "r1" / "cells").glob("*/tiny/attempt-*/job.json")
        return {path.parents[2].name: json.loads(path.read_text()) for path in found}

    return read


@pytest.fixture
def pair(jobs):
    """Two jobs without GPUs, with one and two ranks."""
    return [jobs["gloo-w1-g0-env"], jobs["gloo-w2-g0-env"]]
