import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from allranks.engines import docker
from allranks.engines.base import JobEnvironment, Leftovers
from allranks.engines.docker import DockerEngine
from allranks.engines.process import ProcessEngine
from allranks.engines.registry import engines_here
from allranks.errors import EngineError, ImageError
from allranks.images import docker_client as engine_daemon
from allranks.interruption import check
from allranks.runner.host import _EnvironmentCache, choose_host, gpus_here


class Client:
    def info(self):
        return {"NCPU": 64, "MemTotal": 256 << 30}


pytestmark = pytest.mark.usefixtures("no_slurm")


@pytest.fixture(autouse=True)
def left(monkeypatch, tmp_path):
    """A host without GPUs, Docker socket and DOCKER_HOST; a test sets the leftovers that engines find."""
    dead: dict[str, list[str]] = {}

    def clean_up(self, *, is_dry_run=False):  # noqa: ARG001
        return Leftovers(dead.get(self.name, ()))

    monkeypatch.setenv("ALLRANKS_GPUS", "")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(docker, "_SOCKET", tmp_path / "docker.sock")
    monkeypatch.setattr(ProcessEngine, "clean_up", clean_up)
    monkeypatch.setattr(DockerEngine, "clean_up", clean_up)
    return dead


@pytest.fixture
def daemon(monkeypatch):
    monkeypatch.setattr(docker, "_SOCKET", Path("/"))
    monkeypatch.setattr(engine_daemon, "connect", Client)


@pytest.fixture
def dead_daemon(monkeypatch):
    def refuse():
        msg = "No Docker daemon answers."
        raise EngineError(msg, why="connection refused\nand more")

    monkeypatch.setattr(docker, "_SOCKET", Path("/"))
    monkeypatch.setattr(engine_daemon, "connect", refuse)


@pytest.mark.usefixtures("daemon")
def test_without_the_docker_sdk_auto_is_process_and_docker_is_an_error(matrix, lines, monkeypatch):
    monkeypatch.setitem(sys.modules, "allranks.images.docker_client", None)
    assert choose_host("auto", matrix, lines).engine.name == "process"
    assert lines[0].startswith("engine: process (the Docker SDK for Python is not installed: import of allranks.images")
    assert lines[0].endswith("; GPUs: none")
    with pytest.raises(EngineError, match="pip install docker"):
        choose_host("docker", matrix, lines)


def test_auto_without_a_socket_is_process_with_the_reason(matrix, lines, tmp_path):
    assert choose_host("auto", matrix, lines).engine.name == "process"
    assert lines == [f"engine: process (no Docker daemon: there is no {tmp_path}/docker.sock); GPUs: none"]


@pytest.mark.usefixtures("dead_daemon")
def test_auto_with_an_unreachable_daemon_is_process_with_the_reason(matrix, lines):
    assert choose_host("auto", matrix, lines).engine.name == "process"
    assert lines == ["engine: process (no Docker daemon answers: connection refused); GPUs: none"]


@pytest.mark.usefixtures("daemon")
def test_the_capacity_of_docker_is_that_of_the_daemons_host(matrix, lines):
    host = choose_host("docker", matrix, lines)
    assert (host.cores, host.memory) == (64, 256 << 10)


def test_the_capacity_of_process_is_that_of_this_host(matrix, lines):
    host = choose_host("process", matrix, lines)
    assert host.cores == len(os.sched_getaffinity(0))
    assert host.memory > 256


@pytest.mark.usefixtures("daemon")
def test_auto_with_a_daemon_is_docker_with_the_reason(matrix, lines):
    assert choose_host("auto", matrix, lines).engine.name == "docker"
    assert lines == ["engine: docker (a Docker daemon answers); GPUs: none"]


@pytest.mark.usefixtures("daemon")
def test_auto_without_declared_images_is_process(matrix, lines):
    assert choose_host("auto", replace(matrix, images={}), lines).engine.name == "process"
    assert lines == ["engine: process (the matrix file has no [images]); GPUs: none"]


@pytest.mark.usefixtures("daemon")
def test_a_remote_daemon_needs_no_local_socket(matrix, lines, monkeypatch, tmp_path):
    monkeypatch.setattr(docker, "_SOCKET", tmp_path / "nothing")
    monkeypatch.setenv("DOCKER_HOST", "ssh://far")
    assert choose_host("auto", matrix, lines).engine.name == "docker"


@pytest.mark.usefixtures("daemon")
def test_a_requested_process_engine_is_always_used(matrix, lines):
    assert choose_host("process", matrix, lines).engine.name == "process"
    assert "(requested)" in lines[0]


@pytest.mark.usefixtures("dead_daemon")
def test_a_requested_docker_engine_is_never_replaced(matrix, lines):
    with pytest.raises(EngineError, match="No Docker daemon answers"):
        choose_host("docker", matrix, lines)


def test_gpus_of_the_host_are_counted(matrix, lines, monkeypatch):
    monkeypatch.setenv("ALLRANKS_GPUS", "a,b")
    assert choose_host("process", matrix, lines).gpus == ("a", "b")
    assert lines[0].endswith("GPUs: 2")


def test_leftovers_of_dead_runs_are_removed_and_named(matrix, lines, left):
    left["process"] = ["process 12"]
    choose_host("process", matrix, lines)
    assert lines[1:] == ["removed process 12, left by a dead run"]


def test_clean_up_covers_processes_and_if_a_daemon_answers_containers(monkeypatch):
    assert [engine.name for engine in engines_here()] == ["process"]
    monkeypatch.setattr(docker, "_SOCKET", Path("/"))
    monkeypatch.setattr(engine_daemon, "connect", Client)
    assert [engine.name for engine in engines_here()] == ["docker", "process"]


@pytest.fixture
def made():
    return []


@pytest.fixture
def for_host(matrix, lines, made):
    def build(*gpus):
        def make(image):
            made.append(image.name)
            return JobEnvironment(image=image.name)

        return _EnvironmentCache(ProcessEngine(), gpus, matrix, lines, make)

    return build


def test_a_job_runs_in_its_own_image_if_the_host_has_its_gpus(for_host, jobs, lines):
    assert for_host("a", "b")(jobs["nccl-w2-g2-env"]).image == "cuda"
    assert lines == []


def test_a_job_without_enough_gpus_runs_in_the_image_without_gpus(for_host, jobs, lines):
    assert for_host("a")(jobs["nccl-w2-g2-env"]).image == "cpu"
    assert lines == [
        "nccl-w2-g2-env needs 2 GPUs, but this host has 1: its tests will be skipped, in image cpu instead of cuda"
    ]


def test_a_job_without_enough_gpus_keeps_its_image_if_there_is_no_other(for_host, jobs, lines, matrix):
    del matrix.images["cpu"]
    assert for_host()(jobs["nccl-w1-g1-env"]).image == "cuda"
    assert lines == ["nccl-w1-g1-env needs 1 GPU, but this host has 0: its tests will be skipped"]


def test_the_image_is_not_mentioned_if_all_cells_share_it(for_host, jobs, lines, matrix):
    matrix.images["cpu"] = jobs["nccl-w1-g1-env"].image
    assert for_host()(jobs["nccl-w1-g1-env"]).image == "cuda"
    assert lines == ["nccl-w1-g1-env needs 1 GPU, but this host has 0: its tests will be skipped"]


def test_an_image_is_built_once_for_all_its_jobs(for_host, jobs, made):
    environment = for_host()
    for job in jobs.values():
        environment(job)
    assert made == ["cpu"]


def test_an_image_is_built_once_for_each_version_of_torch(for_host, jobs, made):
    environment = for_host()
    job = jobs["gloo-w2-g0-env"]
    for version in ("2.13.0", "2.14.1", "2.13.0"):
        environment(replace(job, image=replace(job.image, torch=version)))
    assert made == ["cpu", "cpu"]


def test_a_failed_build_is_not_repeated(matrix, jobs, lines, made):
    def fail(image):
        made.append(image.name)
        msg = "No base."
        raise ImageError(msg)

    environment = _EnvironmentCache(ProcessEngine(), (), matrix, lines, fail)
    for cell in ("gloo-w1-g0-env", "gloo-w2-g0-env"):
        with pytest.raises(ImageError, match="No base"):
            environment(jobs[cell])
    assert made == ["cpu"]


def test_an_image_that_takes_longer_than_its_limit_is_an_error_that_names_it(matrix, jobs, lines):
    def take_long(_image):
        while True:
            check()

    matrix = replace(matrix, limits=replace(matrix.limits, build=0.1))
    with pytest.raises(ImageError, match=r"cpu was not built within 0\.1 s") as error:
        _EnvironmentCache(ProcessEngine(), (), matrix, lines, take_long)(jobs["gloo-w1-g0-env"])
    assert "limits.build" in error.value.why


@pytest.mark.usefixtures("daemon")
def test_the_process_engine_removes_containers_that_still_use_a_leased_gpu(matrix, lines, monkeypatch):
    monkeypatch.setenv("ALLRANKS_GPUS", "0")
    evicted = []
    monkeypatch.setattr(DockerEngine, "evict", lambda _, gpus: evicted.append(gpus))
    choose_host("process", matrix, lines).evict(("0",))
    assert evicted == [("0",)]


@pytest.mark.usefixtures("daemon")
def test_without_gpus_the_process_engine_does_not_connect_to_a_daemon(matrix, lines):
    assert choose_host("process", matrix, lines).other_engines == ()


@pytest.mark.parametrize(("nodes", "here"), [(1, 3), (2, 2)])
def test_a_job_on_several_nodes_needs_only_its_share_of_gpus(jobs, nodes, here):
    cell = replace(next(iter(jobs.values())).cell, gpu_count=3, nodes=2)
    assert gpus_here(cell, nodes) == here
