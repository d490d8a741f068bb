"""``allranks doctor --cell`` with fake drivers, toolkits and images."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.cli import machine_demands
from allranks.cli.machine_demands import Cuda, Target, check_demands, compare_driver, cuda_of
from allranks.engines.base import Finding
from allranks.engines.gpus import Inventory
from allranks.errors import DeviceError
from allranks.matrix.declaration import load
from allranks.matrix.model import Image, Process

pytestmark = pytest.mark.usefixtures("locks")

GPUS = Inventory(gpus=("GPU-a", "GPU-b"), everything=("GPU-a", "GPU-b"), version="535.104.05")
CUDA_13 = Cuda(major=13, minor=0, source="torch 2.14.1")


@pytest.fixture
def matrix(repository):
    return load(repository).matrix


@pytest.fixture
def cells(repository):
    """A cell without GPUs and one with a GPU for each rank, with their images."""
    expansion = load(repository)
    return {cell: Image(name="cuda", torch="2.9.0+cu130") for cell in expansion.cells}


@pytest.fixture
def machine(monkeypatch):
    """A machine with an inventory or an error, whose engine has these findings."""

    def make(inventory, *findings):
        def take(_mode):
            if isinstance(inventory, Exception):
                raise inventory
            return inventory

        monkeypatch.setattr(machine_demands, "take_inventory", take)
        engine = SimpleNamespace(check=lambda _: findings, close=lambda: None)
        monkeypatch.setattr(machine_demands, "choose_engine", lambda _: (engine, ""))

    return make


def problems(cells, matrix):
    return {
        finding.subject: finding
        for finding in check_demands(cells, matrix, Target(engine="docker", mode="auto"))
        if finding.remedy
    }


def test_cells_without_gpus_have_no_requirements(cells, matrix):
    without = {cell: image for cell, image in cells.items() if not cell.gpu_count}
    found = list(check_demands(without, matrix, Target(engine="docker", mode="auto")))
    assert found == [Finding("GPUs", "none of these cells needs a GPU")]


def test_a_driver_that_is_too_old_is_named_in_one_sentence(cells, matrix, machine):
    machine(GPUS)
    [problem] = problems(cells, matrix).values()
    assert problem == Finding(
        "driver",
        "image cuda has CUDA 13.0 (torch 2.9.0+cu130), which needs driver 580 or newer; this machine has 535.104.05",
        "Install NVIDIA's driver 580 or newer, or use a torch with an older CUDA in the image.",
    )


def test_a_suitable_machine_has_no_problems(cells, matrix, machine):
    machine(replace(GPUS, version="580.95.05"), Finding("toolkit", "NVIDIA's is installed"))
    assert problems(cells, matrix) == {}


def test_too_few_or_unhealthy_gpus_and_a_missing_toolkit_are_problems(cells, matrix, machine):
    unhealthy = Inventory(gpus=("GPU-a",), faults={"GPU-a": "it needs a reset"}, version="580.95.05")
    machine(
        unhealthy, Finding("toolkit", "NVIDIA's is not installed", "Install it."), Finding("clock", "late", "Set it.")
    )
    found = problems(cells, matrix)
    assert set(found) == {"GPUs", "unhealthy GPU", "toolkit"}
    assert found["GPUs"].text == "nccl-w2-g2-env needs 2; this machine has 1"


def test_a_driver_that_fails_is_the_problem(cells, matrix, machine):
    error = DeviceError("NVML cannot.", why="It says: lost.", remedy="Restart.")
    machine(error)
    assert problems(cells, matrix) == {"GPUs": Finding("GPUs", "NVML cannot. It says: lost.", "Restart.")}


@pytest.mark.parametrize(
    ("cuda", "version", "is_enough"),
    [
        ((12, 9), "525.60.13", True),
        ((12, 0), "515.105.01", False),
        ((13, 2), "580.65.06", True),
        ((13, 0), "575.57.08", False),
        ((11, 8), "470.82.01", True),
        ((14, 0), "580.65.06", True),  # an unknown version has no requirement
        ((13, 0), "", True),
    ],
)
def test_a_minor_version_of_cuda_needs_the_driver_of_its_major_version(cuda, version, is_enough):
    found = compare_driver(Image(name="i"), Cuda(major=cuda[0], minor=cuda[1], source="x"), version)
    assert bool(found.remedy) is not is_enough


def test_an_image_with_packages_for_forward_compatibility_is_not_checked():
    image = Image(name="i", apt=("cuda-compat-13-0=580.1-1",))
    assert not compare_driver(image, CUDA_13, "535.104.05").remedy


def test_the_loaded_drivers_version_is_read_without_nvml(tmp_path):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    for text, version in (
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", "580.95.05"),
        ("nothing\n", ""),
    ):
        (tmp_path / "proc/driver/nvidia/version").write_text(text)
        assert machine_demands._loaded_version(tmp_path) == version
    assert machine_demands._loaded_version(tmp_path / "none") == ""


@pytest.mark.parametrize(
    "image",
    [
        Image(name="i", torch="2.9.0+cu126"),
        Image(name="i", torch="2.9.0", index="https://download.example.org/whl/cu126"),
        Image(name="i", torch="2.9.0", extra_index=("https://example.org/simple", "https://x/whl/cu126/")),
    ],
)
def test_cuda_is_known_from_torchs_version_or_index(image, matrix):
    cuda = cuda_of(image, matrix, "docker")
    assert (cuda.major, cuda.minor) == (12, 6)


@pytest.mark.parametrize(
    ("version", "requires", "expected"),
    [
        ("2.8.0", "nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'", (12, 8)),
        ("2.14.1", "cuda-toolkit[cublas,cudart]==13.0.3; platform_system == 'Linux'", (13, 0)),
        ("2.13.0+cu130", "sympy", (13, 0)),
        ("2.13.0+cpu", "sympy", None),
    ],
)
def test_cuda_is_known_from_torchs_metadata(monkeypatch, matrix, version, requires, expected):
    def run_pip(request, _progress):
        [report] = [argument.partition("=")[2] for argument in request.arguments if argument.startswith("--report")]
        assert "--dry-run" in request.arguments
        metadata = {"version": version, "requires_dist": ["filelock", requires]}
        Path(report).write_text(json.dumps({"install": [{"metadata": metadata}]}))

    monkeypatch.setattr("allranks.images.wheels.run_pip", run_pip)
    cuda = cuda_of(Image(name="i", torch=version.partition("+")[0]), matrix, "docker")
    assert (cuda and (cuda.major, cuda.minor)) == expected


def test_cuda_is_known_from_the_interpreters_packages(monkeypatch, matrix):
    versions = {"torch": "2.8.0", "nvidia-cuda-runtime-cu12": "12.8.90"}
    monkeypatch.setattr("allranks.images.environments.probe", lambda _: SimpleNamespace(versions=versions))
    cuda = cuda_of(Image(name="i"), replace(matrix, process=Process(python=sys.executable)), "process")
    assert (cuda.major, cuda.minor) == (12, 8)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (["PATH=/bin", "CUDA_VERSION=12.4.1"], (12, 4)),
        (["NVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=unknown,driver>=575"], (13, 0)),
        (["PATH=/bin"], None),
        (None, None),
    ],
)
def test_cuda_is_known_from_a_finished_images_variables(monkeypatch, matrix, variables, expected):
    api = SimpleNamespace(inspect_image=lambda _: {"Config": {"Env": variables}})
    daemon = SimpleNamespace(api=api, close=lambda: None)
    monkeypatch.setattr(machine_demands, "choose_engine", lambda _: (SimpleNamespace(image_daemon=daemon), ""))
    cuda = cuda_of(Image(name="i", image="ours:1"), matrix, "docker")
    assert (cuda and (cuda.major, cuda.minor)) == expected


def test_a_pip_error_is_not_a_problem_of_the_machine(cells, matrix, machine, monkeypatch):
    def fail(*_):
        msg = "pip finds none."
        raise DeviceError(msg, why="No index.")

    machine(GPUS)
    monkeypatch.setattr(machine_demands, "cuda_of", fail)
    assert problems(cells, matrix) == {}
