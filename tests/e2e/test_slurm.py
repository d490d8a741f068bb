"""Runs on a SLURM cluster of isolated nodes, and what happens to clusters; `nox -s slurm` does all of it."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm

acceptance = pytest.mark.thorough

MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]
gpu_count = [0, 3]
init_method = ["env"]
nodes = [1, 2]

[suites.tiny]
path = "suite"

[images.cpu]
torch = "2.13.0"

[limits]
silence = 8

[process]
python = "{python}"

[slurm]
spool = "{spool}"
"""

SUITE = """
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

time.sleep(float(os.environ.get("IMPORT_TAKES", "0")))


def test_the_ranks_meet(process_group, rank):
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor)
    assert tensor.item() == 1
    print("on", socket.gethostname())


def test_takes_its_time(process_group):
    Path(os.environ["MARK"]).touch()
    ends = time.monotonic() + float(os.environ.get("TAKES", "0"))
    while time.monotonic() < ends and not Path(os.environ["MARK"] + "-done").exists():
        time.sleep(0.05)
    dist.barrier()
"""

ONE, TWO = "gloo-w2-g0-env", "gloo-w2-g0-env-n2"


@pytest.fixture
def repository(slurm_cluster, tmp_path):
    """A repository whose second test says that it has begun, and takes as long as it is told."""
    return Repository(slurm_cluster, tmp_path)


class Repository:
    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.folder = folder / "repository"
        self.spool = folder / "spool"
        self.mark = folder / "mark"
        (self.folder / "suite").mkdir(parents=True)
        (self.folder / "suite" / "test_tiny.py").write_text(SUITE)
        (self.folder / "matrix.toml").write_text(MATRIX.format(python=sys.executable, spool=self.spool))
        # The user's own file is for other clusters.
        self.environment = {**cluster.environment, "XDG_CONFIG_HOME": str(folder), "MARK": str(self.mark)}

    @contextmanager
    def running(self, *arguments, **variables):
        """A run of the slurm engine, which is stopped at the end."""
        command = [sys.executable, "-m", "allranks", "run", "--engine", "slurm", *arguments]
        environment = {**self.environment, **variables}
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments, **variables):
        with self.running(*arguments, **variables) as process:
            return ended(process)

    @property
    def queue(self):
        """The jobs that SLURM has, and has not ended."""
        command = ["squeue", "--me", "--noheader", "--format=%j"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    def slurm(self, *command):
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def wait_for_mark(self):
        wait_until(self.mark.exists)

    @property
    def attempts(self):
        return sorted(path.name for path in (self.folder / "results" / "latest").resolve().glob("cells/*/*/attempt-*"))

    @property
    def left(self):
        return [path.name for path in self.spool.glob("allranks-*")]


def ended(process, seconds=150):
    output, _ = process.communicate(timeout=seconds)
    return process.returncode, output


def wait_until(happens, seconds=60):
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_cells_on_one_node_and_on_two_run_and_leave_nothing(repository):
    status, output = repository.run(ONE, TWO, "--verbose")
    assert status == 0, output
    assert output.count("2 passed") == 2
    assert "placed on n" in output
    wait_until(lambda: not repository.queue)
    assert repository.left == []


@pytest.mark.parametrize("when", ["import", "test"])
def test_a_job_that_is_cancelled_is_told_as_that(repository, when):
    takes = {"IMPORT_TAKES": "60"} if when == "import" else {"TAKES": "60"}
    with repository.running(ONE, **takes) as process:
        if when == "test":
            repository.wait_for_mark()
        else:
            wait_until(lambda: list(repository.spool.glob("allranks-*/node-0/stream")))
        repository.slurm("scancel", "--me")
        status, output = ended(process)
    assert status == 4, output
    assert "The job was canceled (scancel); it was SLURM job" in output


def test_a_job_without_room_is_told_to_be_queued_and_taken_back_at_ctrl_c(repository):
    repository.slurm("sbatch", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 60")
    try:
        with repository.running(ONE) as process:
            for line in process.stdout:
                if "queued (" in line:
                    break
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            status, output = ended(process)
        assert (status, "interrupted" in output) == (130, True)
        wait_until(lambda: repository.queue == ["wrap"], 10 - (time.monotonic() - began))
        assert repository.left == []
    finally:
        repository.slurm("scancel", "--me")
        wait_until(lambda: not repository.queue)


def cut_power(repository, place, seconds):
    """Cut the power of a job's node in mid-test: the node's name, and what its run said, which ended in time."""
    with repository.running(TWO, TAKES="120") as process:
        repository.wait_for_mark()
        [node] = [json.loads(path.read_text())["host"] for path in repository.spool.glob(f"*/{place}/placed.json")]
        began = time.monotonic()
        try:
            repository.cluster.script("node-kill", node)
            status, output = ended(process)
            assert time.monotonic() - began < seconds
        finally:
            repository.cluster.script("node-start", node)
    assert status == 4, output
    return node, output


@acceptance
def test_a_node_that_loses_its_power_is_named_with_its_rank(repository):
    node, output = cut_power(repository, "node-1", 1.5 * 8 + 10)
    assert "rank 1 is lost" in output
    assert f"The job lost {node}; it was SLURM job" in output


@acceptance
def test_a_leading_node_that_loses_its_power_is_named_and_leaves_no_job(repository):
    node, output = cut_power(repository, "node-0", 100)  # TCP notices it: the leading node asks and does not answer
    assert f"The job lost {node}; it was SLURM job" in output
    wait_until(lambda: not repository.queue)


@acceptance
def test_a_controller_that_is_killed_costs_no_job(repository):
    with repository.running(ONE, TAKES="25") as process:
        repository.wait_for_mark()
        time.sleep(6)  # SLURM writes a new job to its disk after five seconds, and forgets it otherwise
        repository.cluster.script("ctl-kill")
        try:
            status, output = ended(process)
        finally:
            repository.cluster.script("ctl-start")
    assert status == 0, output
    assert repository.attempts == ["attempt-1"]


@acceptance
def test_a_run_whose_orchestrator_is_killed_goes_on_with_the_same_jobs(repository):
    with repository.running(ONE, TWO, TAKES="20") as process:
        repository.wait_for_mark()
        wait_until(lambda: len(repository.queue) == 2)
        process.kill()
    before = sorted(repository.queue)
    with repository.running("--resume") as process:
        wait_until(lambda: not repository.queue or sorted(repository.queue) == before)
        status, output = ended(process)
    assert status == 0, output
    assert output.count("2 passed") == 2
    assert repository.attempts == ["attempt-1", "attempt-1"]
    assert repository.left == []


@acceptance
@pytest.mark.parametrize(("retries", "expected"), [(0, 4), (1, 0)])
def test_a_job_that_is_preempted_is_told_as_that_and_may_be_tried_again(repository, retries, expected):
    with repository.running(ONE, f"--reruns={retries}", TAKES="8", SBATCH_PARTITION="low") as process:
        repository.wait_for_mark()
        repository.slurm("sbatch", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")
        status, output = ended(process)
    assert status == expected, output
    assert "was preempted: a job of higher priority has its nodes" in output


@acceptance
def test_a_crash_of_slurmd_costs_no_job(repository):
    with repository.running(ONE, TAKES="120") as process:
        repository.wait_for_mark()
        [node] = [json.loads(path.read_text())["host"] for path in repository.spool.glob("*/node-0/placed.json")]
        repository.cluster.script("slurmd-kill", node)
        try:
            # What SLURM does by itself after SlurmdTimeout, or minutes later.
            repository.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=slurmd is gone")
            message = "given up by the cluster (NODE_FAIL), but its files still change"
            lines = []
            while lines[-1:] != [""] and message not in "".join(lines):
                lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
            Path(f"{repository.mark}-done").touch()
            status, output = ended(process)
        finally:
            repository.cluster.script("slurmd-start", node)
            repository.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert status == 0, output
    assert repository.attempts == ["attempt-1"]


@acceptance
@pytest.mark.root
def test_a_spool_that_is_full_is_named(start_slurm_cluster, tmp_path):
    (tmp_path / "spool").mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=16m", "none", str(tmp_path / "spool"))
    subprocess.run(mount, check=True)
    try:
        with start_slurm_cluster() as cluster:  # its nodes see the disks that are mounted before it
            repository = Repository(cluster, tmp_path)
            with repository.running(ONE, TAKES="5") as process:
                repository.wait_for_mark()
                with suppress(OSError), (repository.spool / "filler").open("wb", buffering=0) as filler:
                    while filler.write(bytes(4096)):
                        pass
                status, output = ended(process)
            assert status == 4, output
            assert f"could not write to {repository.spool} (No space left on device" in output.replace("\n", " ")
            assert repository.left == []
    finally:
        subprocess.run(("umount", "--lazy", str(tmp_path / "spool")), check=True)  # noqa: S607


@acceptance
def test_gpus_that_do_not_divide_evenly_are_refused(repository):
    status, output = repository.run("gloo-w2-g3-env-n2")
    assert status == 2, output
    assert "needs 3 GPUs on 2 nodes" in output


@acceptance
def test_clean_on_a_node_leaves_a_live_run_alone(repository):
    with repository.running(ONE, TAKES="20") as process:
        repository.wait_for_mark()
        clean = ["srun", "--nodes=1", "--overlap", sys.executable, "-m", "allranks", "clean"]
        done = subprocess.run(
            clean,
            cwd=repository.folder,
            env=repository.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "removed" not in done.stdout.replace("not removed", "").replace("nothing to remove", ""), done.stdout
        status, output = ended(process)
    assert status == 0, output


IMAGE = """
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.tiny]
path = "."

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]
"""


@pytest.fixture(scope="module")
def image(docker_client, tmp_path_factory):  # noqa: ARG001 - without a daemon there is none
    """An image with torch, which is built if it is missing."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "matrix.toml").write_text(IMAGE)
    build = [sys.executable, "-m", "allranks", "build", "--engine", "docker", "--quiet"]
    output = subprocess.run(build, cwd=folder, capture_output=True, text=True, check=True).stdout
    return output.partition(": ")[2].strip()


@pytest.fixture(scope="module")
def shared_cluster(image, start_slurm_cluster):  # noqa: ARG001 - a daemon first, since a cluster takes seconds
    """A cluster whose nodes share this host's network, as the daemon's containers do."""
    with start_slurm_cluster(SLURM_CLUSTER_ISOLATED="no") as cluster:
        yield cluster


@pytest.fixture
def contained(shared_cluster, image, docker_client, tmp_path):
    """The same repository, whose jobs run in containers of Docker."""
    repository = ContainedRepository(shared_cluster, tmp_path, image, docker_client.api)
    yield repository
    for container in repository.containers:
        docker_client.api.remove_container(container["Id"], force=True)


class ContainedRepository(Repository):
    """A repository whose jobs run in this image, and whose runs have one name."""

    def __init__(self, cluster, folder, image, daemon):
        super().__init__(cluster, folder)
        with (self.folder / "matrix.toml").open("a") as matrix:
            matrix.write(f'container = "docker:{image}"\n')
        self.daemon = daemon
        self.runs = f"e2e-{secrets.token_hex(4)}"
        # In the folder of the ranks: a container has none of this host's others.
        self.environment |= {"MARK": "mark", "ALLRANKS_RUN_ID": self.runs}

    def wait_for_mark(self):
        wait_until(lambda: list(self.spool.glob("allranks-*/shared/mark")))

    @property
    def containers(self):
        listed = self.daemon.containers(all=True, filters={"label": "allranks.supervisor"})
        return [container for container in listed if container["Labels"]["allranks.run"].startswith(self.runs)]


@acceptance
def test_cells_on_one_node_and_on_two_run_in_containers_and_leave_none(contained):
    with contained.running(ONE, TWO, TAKES="3") as process:
        contained.wait_for_mark()
        assert contained.containers
        status, output = ended(process)
    assert status == 0, output
    assert output.count("2 passed") == 2
    assert contained.containers == []
    assert contained.left == []


@acceptance
def test_a_job_that_is_cancelled_leaves_no_container(contained):
    with contained.running(ONE, TAKES="60") as process:
        contained.wait_for_mark()
        assert len(contained.containers) == 1
        contained.slurm("scancel", "--me")
        status, output = ended(process)
    assert status == 4, output
    assert "The job was canceled (scancel); it was SLURM job" in output
    wait_until(lambda: not contained.containers, 10)


@acceptance
def test_a_stuck_container_of_a_supervisor_that_was_killed_goes_with_the_next_job(contained):
    with contained.running(ONE, TAKES="60") as process:
        contained.wait_for_mark()
        [left] = contained.containers
        contained.daemon.pause(left["Id"])
        os.kill(int(left["Labels"]["allranks.supervisor"].partition(".")[0]), signal.SIGKILL)
        status, output = ended(process)
    assert status == 4, output
    assert "has left no exit status" in output
    assert [container["Id"] for container in contained.containers] == [left["Id"]]
    status, output = contained.run(ONE, ALLRANKS_RUN_ID=f"{contained.runs}-next")
    assert status == 0, output
    assert contained.containers == []
