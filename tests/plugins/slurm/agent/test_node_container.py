"""The command that starts a node's agent in a container."""

from pathlib import Path

import pytest

from allranks.plugins.slurm.agent.node_container import (
    INSIDE,
    AgentFolders,
    agent_command,
    contained,
    make_mount_points,
)

OUTSIDE = AgentFolders(job=Path("/spool/job"), code=Path("/home/me/code"), package=Path("/spool/package"))
SCRATCH = Path("/node/allranks-node-x")
AGENT = agent_command("python3", INSIDE, 1)
VARIABLES = {"A": "1", "TMPDIR": "/node/allranks-node-x", "PYTHONHOME": "/of/the/node", "CUDA_VISIBLE_DEVICES": ""}


def test_an_agent_gets_its_folders_as_it_sees_them():
    assert (
        *("python3", "-I", "-S", "/tmp/allranks/package/allranks/agent/__main__.py"),
        *("--config", "/tmp/allranks/job/node-1/config.json"),
        *("--code", "/tmp/allranks/code"),
        *("--results", "/tmp/allranks/job/node-1/results"),
        *("--shared", "/tmp/allranks/job/shared"),
    ) == AGENT


def test_charliecloud_mounts_the_folders_below_tmp_which_is_the_scratch_folder():
    launch = contained("charliecloud:registry:5050/torch", AGENT, OUTSIDE, SCRATCH, VARIABLES)
    assert launch.command == (
        "ch-run",
        "--bind=/spool/job:/tmp/allranks/job",
        "--bind=/home/me/code:/tmp/allranks/code",
        "--bind=/spool/package:/tmp/allranks/package",
        "--cd=/tmp/allranks/job/shared",
        "--set-env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *("registry:5050/torch", "--", *AGENT),
    )
    assert launch.variables == {
        "A": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": "/tmp/allranks/package",
        "TMPDIR": str(SCRATCH),
        "USER": "user",
    }


def test_charliecloud_sets_the_variables_that_a_converted_image_has(tmp_path):
    (tmp_path / "ch").mkdir()
    (tmp_path / "ch" / "environment").write_text("PATH=/opt/conda/bin\n")
    command = contained(f"charliecloud:{tmp_path}", AGENT, OUTSIDE, SCRATCH, VARIABLES).command
    own = command.index(f"--set-env={tmp_path}/ch/environment")
    assert command[own - 1].startswith("--set-env=PATH=")
    assert command[own + 1 : own + 3] == (str(tmp_path), "--")


def test_a_user_name_that_is_set_is_kept():
    variables = {**VARIABLES, "USER": "me"}
    assert contained("charliecloud:x", AGENT, OUTSIDE, SCRATCH, variables).variables["USER"] == "me"


def test_apptainer_mounts_all_but_the_job_read_only_and_no_home():
    launch = contained("apptainer:docker://torch:2", AGENT, OUTSIDE, SCRATCH, VARIABLES)
    assert launch.command == (
        *("apptainer", "exec", "--no-home", "--no-mount", "cwd,tmp"),
        *("--bind", "/node/allranks-node-x:/tmp"),
        *("--bind", "/spool/job:/tmp/allranks/job"),
        *("--bind", "/home/me/code:/tmp/allranks/code:ro"),
        *("--bind", "/spool/package:/tmp/allranks/package:ro"),
        *("--pwd", "/tmp/allranks/job/shared"),
        *("docker://torch:2", *AGENT),
    )
    assert launch.variables == {"A": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": "/tmp/allranks/package"}


def test_apptainer_brings_in_the_driver_for_a_job_with_gpus():
    variables = {**VARIABLES, "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    launch = contained("apptainer:x.sif", AGENT, OUTSIDE, SCRATCH, variables)
    assert "--nv" in launch.command[: launch.command.index("x.sif")]
    assert launch.variables["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"


def test_a_runtime_that_a_node_cannot_enter_is_an_error():
    with pytest.raises(ValueError, match="in a container of pyxis"):
        contained("pyxis:x", AGENT, OUTSIDE, SCRATCH, VARIABLES)


def test_each_folder_has_a_mount_point_in_the_scratch_folder(tmp_path):
    make_mount_points(tmp_path)
    for folder in (INSIDE.job, INSIDE.code, INSIDE.package):
        assert (tmp_path / folder.relative_to("/tmp")).is_dir()
