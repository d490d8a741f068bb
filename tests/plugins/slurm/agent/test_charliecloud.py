"""A node's supervisor and its agent in a real container of Charliecloud.

The image is a folder of mount points: this system's own folders are bound into it by a ch-run before the real one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from agent_run import CONFIG, PATIENCE

from allranks.plugins.slurm.agent import node_files as files
from allranks.plugins.slurm.agent import node_supervisor
from allranks.plugins.slurm.agent.node_files import NodeOrder, write_whole

SYSTEM = ("bin", "lib", "lib64", "sbin")
VENV = "/venv"


pytestmark = pytest.mark.charliecloud


@pytest.fixture
def image(tmp_path):
    """An image with this Python: a folder, and beside it a ch-run that binds the rest."""
    image, commands = tmp_path / "image", tmp_path / "bin"
    for name in ("ch", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", VENV[1:]):
        (image / name).mkdir(parents=True)
    for name in ("passwd", "group"):
        (image / "etc" / name).touch()
    binds = ["--bind=/usr", f"--bind={sys.prefix}:{VENV}"]
    for name in SYSTEM:
        if Path("/", name).is_symlink():
            (image / name).symlink_to(Path("/", name).readlink())
        elif Path("/", name).is_dir():
            (image / name).mkdir()
            binds.append(f"--bind=/{name}")
    if not Path(sys.base_prefix).is_relative_to("/usr"):
        (image / sys.base_prefix[1:]).mkdir(parents=True)
        binds.append(f"--bind={sys.base_prefix}")
    (image / "ch" / "environment").write_text(f"PATH={VENV}/bin:/usr/bin:/bin\nOF_THE_IMAGE=yes\n")
    commands.mkdir()
    (commands / "ch-run").write_text(f'#!/bin/sh\nexec {shutil.which("ch-run")} {" ".join(binds)} "$@"\n')
    (commands / "ch-run").chmod(0o755)
    return image


@pytest.fixture
def job(tmp_path, image):
    """Starts the supervisor of a job with these tests."""
    started = []

    def start(text):
        job = ContainedJob(tmp_path, image, text)
        started.append(job)
        return job

    yield start
    for job in started:
        (job.folder / files.STOP).touch()
        job.process.wait(PATIENCE)


class ContainedJob:
    """A job of one node, its agent in the image."""

    def __init__(self, tmp_path, image, text):
        self.folder = tmp_path / "job"
        self.own = self.folder / "node-0"
        (self.own / files.RESULTS).mkdir(parents=True)
        (self.folder / files.SHARED).mkdir()
        suite = tmp_path / "code" / "suite"
        suite.mkdir(parents=True)
        (suite / "test_small.py").write_text(text)
        order = NodeOrder(python="python3", code=str(suite.parent), container=f"charliecloud:{image}")
        (self.folder / files.ORDER).write_text(json.dumps(vars(order)))
        config = replace(CONFIG, world_size=1, process_group=False)
        write_whole(self.own / files.CONFIG, config.to_json())
        environment = {
            "PATH": f"{image.parent / 'bin'}:{os.environ['PATH']}",
            "SLURM_NODEID": "0",
            "ON_THE_NODE": str(suite),
            "TMPDIR": str(tmp_path),
        }
        command = [sys.executable, "-I", "-S", node_supervisor.__file__, str(self.folder)]
        self.process = subprocess.Popen(command, env=environment)

    def record(self, kind):
        """Wait for a record of the agent; its values."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for line in self.stream.splitlines():
                if f'["{kind}",' in line:
                    return json.loads(line[line.index("[") :])[1]
            assert self.process.poll() is None, self.stream
            time.sleep(0.05)
        pytest.fail(f"no {kind}: {self.stream}")

    @property
    def stream(self):
        return (self.own / files.STREAM).read_text(errors="replace") if (self.own / files.STREAM).exists() else ""

    def ended(self):
        """Wait for the supervisor's end; the agent's."""
        self.process.wait(PATIENCE)
        return json.loads((self.own / files.EXIT).read_text())


INSIDE = """
import os, tempfile
from pathlib import Path

def test_inside():
    assert os.environ["CH_RUNNING"]
    assert os.environ["OF_THE_IMAGE"] == "yes"
    assert not Path(os.environ["ON_THE_NODE"]).exists()
    assert tempfile.gettempdir() == "/tmp"
    Path("/tmp/of-the-test").touch()
"""


def test_a_test_runs_in_the_image_after_go_and_leaves_nothing_on_the_node(job, tmp_path):
    running = job(INSIDE)
    running.record("Collected")
    assert "TestStarted" not in running.stream
    (running.folder / files.GO).touch()
    end = running.ended()
    assert end["status"] == 0, running.stream
    assert '["Passed",' in running.stream
    assert list((running.own / files.RESULTS).iterdir())
    assert not list(tmp_path.glob("allranks-node-*"))


ENDLESS = """
import os, subprocess, time
from pathlib import Path

def test_endless():
    left = subprocess.Popen(["setsid", "sleep", "1000"])
    Path("pids").write_text(f"{left.pid} {os.getpid()}")
    time.sleep(1000)
"""


def pids_of(running):
    deadline = time.monotonic() + PATIENCE
    path = running.folder / files.SHARED / "pids"
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, running.stream
        time.sleep(0.05)
    return [int(word) for word in path.read_text().split()]


def live(pids):
    return [pid for pid in pids if Path("/proc", str(pid)).exists()]


def test_the_end_of_its_input_ends_an_agent_in_its_container_and_all_that_it_left(job):
    running = job(ENDLESS)
    (running.folder / files.GO).touch()
    pids = pids_of(running)
    assert live(pids) == pids, "the numbers of processes are those of the node"
    (running.folder / files.STOP).touch()
    assert running.ended()["status"] == 130
    assert live(pids) == []


def test_the_processes_of_an_agent_that_was_killed_in_its_container_are_gone(job):
    running = job(ENDLESS)
    (running.folder / files.GO).touch()
    pids = pids_of(running)
    os.kill(running.record("Begun")["pid"], signal.SIGKILL)
    assert running.ended()["status"] == -signal.SIGKILL
    assert live(pids) == []


def test_the_words_of_a_container_that_cannot_start_are_kept(job, image):
    (image / "etc" / "passwd").unlink()
    running = job(INSIDE)
    assert running.ended()["status"] not in {0, None}
    assert "ch-run" in running.stream
