"""What ``[slurm] container`` changes in a job's batch script and order."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from engine_contract import job_of_two_ranks

from allranks.engines.base import FileCopy
from allranks.errors import EngineError
from allranks.plugins.slurm.agent.node_container import AgentFolders
from allranks.plugins.slurm.container import agent_container, docker_options, step_options, supervisor_python
from allranks.plugins.slurm.engine import SlurmEngine
from allranks.plugins.slurm.settings import Slurm
from allranks.plugins.slurm.submission import script

FOLDERS = AgentFolders(job=Path("/spool/job"), code=Path("/home/me/code"), package=Path("/spool/package"))


def step(container: str | None) -> list[str]:
    """The words of the srun in a batch script."""
    spec = job_of_two_ranks("run", Path("/home/me/code"))
    text = script(spec, FOLDERS.job, FOLDERS.package, container)
    return shlex.split(text.splitlines()[1])


def test_pyxis_starts_the_supervisor_in_the_container_at_the_same_paths_without_the_home():
    words = step("pyxis:nvcr.io#nvidia/pytorch:24.01-py3")
    assert words[words.index("python3") - 5 :] == [
        "--container-image=nvcr.io#nvidia/pytorch:24.01-py3",
        "--container-mounts=/spool/job:/spool/job,/home/me/code:/home/me/code:ro,/spool/package:/spool/package:ro",
        "--container-workdir=/spool/job",
        "--no-container-mount-home",
        "--no-container-entrypoint",
        *("python3", "-I", "-S", "/spool/package/allranks/plugins/slurm/agent/node_supervisor.py", "/spool/job"),
    ]
    assert agent_container("pyxis:x", FOLDERS) == ""


@pytest.mark.parametrize("container", ["charliecloud:/image", "apptainer:/image.sif", "docker:torch:2"])
def test_other_containers_are_for_the_agent_and_the_supervisor_runs_on_the_node(container):
    words = step(container)
    assert sys.executable in words
    assert "python3" not in words
    assert not any("container" in word for word in words[: words.index(sys.executable)])
    assert agent_container(container, FOLDERS) == container


def test_a_job_without_a_container_is_as_it_was():
    assert step_options(None, FOLDERS) == ()
    assert supervisor_python(None, "/env/bin/python") == "/env/bin/python"
    assert agent_container(None, FOLDERS) == ""


@pytest.mark.parametrize("name", ["/home/me/a,b", "/home/me/a:b"])
def test_a_folder_that_no_runtime_can_mount_is_refused_only_with_a_container(name):
    folders = AgentFolders(job=FOLDERS.job, code=Path(name), package=FOLDERS.package)
    assert agent_container(None, folders) == ""
    with pytest.raises(EngineError) as raised:
        agent_container("pyxis:x", folders)
    assert raised.value.what == f"The folder {name} cannot be mounted in a container."


def test_a_container_of_docker_has_the_labels_and_limits_of_its_job(tmp_path):
    node = job_of_two_ranks("run", tmp_path).resources
    larger = replace(node, memory_bytes=5 << 30, pids=77)
    spec = replace(
        job_of_two_ranks("run", tmp_path),
        agent=replace(job_of_two_ranks("run", tmp_path).agent, nodes=2),
        node_resources=(node, larger),
        environment={"A": "secret"},
    )
    options = docker_options("docker:torch", spec, tmp_path)
    assert options == (
        *(f"--label={name}={value}" for name, value in spec.labels.items()),
        *(f"--memory={5 << 30}", f"--memory-swap={5 << 30}", f"--shm-size={node.shm_bytes}"),
        *(f"--pids-limit={max(77, node.pids)}", "--env=A", f"--security-opt=seccomp={tmp_path}/seccomp.json"),
    )
    assert "--label=allranks.run=run" in options


def test_the_daemons_own_filter_stays_where_it_is_wanted_and_other_runtimes_have_no_options(tmp_path):
    spec = job_of_two_ranks("run", tmp_path)
    assert not [
        option
        for option in docker_options("docker:x", replace(spec, seccomp="default"), tmp_path)
        if "seccomp" in option
    ]
    assert [docker_options(other, spec, tmp_path) for other in (None, "pyxis:x", "apptainer:x")] == [(), (), ()]


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Submits a job with an sbatch that only notes its variables; the order, and those variables."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("sbatch", "scancel", "squeue"):
        (commands / name).write_text(f'#!/bin/sh\n[ {name} != sbatch ] || env >"{tmp_path}/variables"; echo 1\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    monkeypatch.setenv("PYTHONPATH", "/of/this/host")

    def submit(container: str | None) -> tuple[str, str]:
        spool = tmp_path / "spool"
        engine = SlurmEngine(Slurm(container=container, spool=str(spool)), tmp_path / "package")
        with engine.start(replace(job_of_two_ranks("run", tmp_path / "code"), python="python3")):
            order = next(spool.glob("*/order.json")).read_text()
            if container and container.startswith("docker:"):
                assert "syscalls" in next(spool.glob("*/seccomp.json")).read_text()
        report = dict(line.partition("=")[::2] for line in (tmp_path / "variables").read_text().splitlines())
        return order, report["PYTHONPATH"]

    return submit


def test_the_supervisor_gets_the_container_and_python_finds_the_package_alone(submitted, tmp_path):
    order, path = submitted("charliecloud:/image")
    assert '"container": "charliecloud:/image"' in order
    assert path == str(tmp_path / "package")
    order, _ = submitted("docker:torch:2")
    assert "--pids-limit=" in order
    order, path = submitted(None)
    assert '"options": []' in order
    assert '"container": ""' in order
    assert path.endswith(":/of/this/host")


def test_a_job_in_a_container_with_a_link_out_of_the_repository_leaves_no_folder(make_spec, tmp_path):
    secret, tests = tmp_path / "home" / ".ssh", tmp_path / "code" / "tests"
    secret.mkdir(parents=True)
    tests.mkdir(parents=True)
    (tests / "data").symlink_to(secret)
    copy = FileCopy(source=tests, target=Path("tests"), root=tmp_path / "code")
    spec = make_spec(python="python3", code=tmp_path / "code", files=(copy,))
    settings = Slurm(container="apptainer:/image.sif", spool=str(tmp_path / "spool"))
    engine = SlurmEngine(settings, tmp_path / "package")
    with pytest.raises(EngineError, match=r"The link .*tests/data leads to"), engine.start(spec):
        pass
    assert not (tmp_path / "spool").exists()
