"""Each container gets exactly the GPUs that its job holds, while many run at a time: what a real engine was asked for.

There are no GPUs here. A stand-in for NVIDIA's hook writes down which ones the engine wants it to give (see
``stand_ins``); AMD's are device nodes that lead to nothing.
"""

import json
import os
import stat
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path

import pytest
from docker.errors import NotFound

from allranks.engines import docker_objects
from allranks.engines.docker import DockerEngine
from allranks.engines.gpus import Inventory
from allranks.images.base import DEFAULT, find_base
from allranks.matrix.declaration import load
from allranks.matrix.jobs import plan
from allranks.ownership import HOST_LABEL, own_run
from allranks.report.run_files import Manifest
from allranks.runner.attempt_runner import AttemptRunner
from allranks.runner.dispatcher import Dispatcher
from allranks.runner.host import choose_host
from allranks.runner.listener import RunListener
from allranks.runner.results_folder import open_run

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("leases")]

RECORD = Path("/run/allranks-gpu-hook.jsonl")

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [{nodes}]
nodes = [{nodes}]
gpu_count = {gpu_count}

{suites}

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]
"""

SUITE = """\
import json
import os
from pathlib import Path

NODES = sorted(Path("/dev/dri").iterdir()) if Path("/dev/dri").exists() else []


def is_usable(node):
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError:
        return False
    return True


seen = {
    "nvidia": os.environ.get("NVIDIA_VISIBLE_DEVICES"),
    "nodes": {node.name: is_usable(node) for node in NODES},
    "kfd": is_usable("/dev/kfd"),
}
node = os.environ["GROUP_RANK"]
Path("/job/results" if node == "0" else f"/job/node-{node}/results", f"seen-{node}.json").write_text(json.dumps(seen))


def test_nothing():
    pass
"""


@pytest.fixture
def leases(tmp_path, monkeypatch):
    """Leases of the test's own, for GPUs that are not there; owners of runs are looked for where they are.

    A job with a lease first removes what dead runs have left, and in a folder without locks every run would look dead.
    """
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr("allranks.runner.gpu_leases.lock_folder", lambda: folder)


@pytest.fixture
def run_jobs(tmp_path, docker_client, run_id):
    """Runs suites that look at what they are given: by job what it leased and saw, and the lives of the containers."""

    def run(inventory, gpu_count, suites, nodes=1):
        tables = "\n".join(f'[suites.s{number}]\npath = "suite"' for number in range(suites))
        (tmp_path / "suite").mkdir()
        (tmp_path / "suite" / "test_seen.py").write_text(SUITE)
        (tmp_path / "matrix.toml").write_text(MATRIX.format(gpu_count=gpu_count, suites=tables, nodes=nodes))
        expansion = load(tmp_path)
        jobs = plan(expansion.matrix, expansion.cells)
        folder = open_run(tmp_path / "results", run_id, jobs, Manifest(run_id=""), 7)
        host = replace(choose_host("docker", expansion.matrix, print, inventory), cores=64, memory=1 << 20)
        with own_run(run_id), lives(docker_client, run_id, len(jobs) * nodes) as seen:
            Dispatcher(AttemptRunner(expansion.matrix, host, folder, RunListener(print), ())).run(jobs)
        return found_of(folder.path), seen

    return run


def found_of(folder):
    return {
        record["id"]: (record["gpus"], json.loads(path.with_name("seen-0.json").read_text()))
        for path in folder.glob("cells/*/*/attempt-1/job.json")
        if (record := json.loads(path.read_text()))["error"] is None
    }


@contextmanager
def lives(client, run_id, count):
    """For each of so many containers of a run, by id: its job and node, and when it started and died.

    The daemon is listened to all the while: of what is over it remembers 256 events, and eight jobs have more.
    """
    seen, are_gone = {}, threading.Event()
    stream = client.events(filters={"label": f"allranks.run={run_id}", "type": "container"}, decode=True)

    def listen():
        for event in stream:
            attributes = event["Actor"]["Attributes"]
            life = seen.setdefault(
                event["id"], {"job": attributes["allranks.job"], "node": attributes["allranks.node"]}
            )
            life[event["Action"]] = event["timeNano"]
            if sum("destroy" in life for life in seen.values()) == count:
                are_gone.set()

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield seen
        assert are_gone.wait(30)
    finally:
        stream.close()
        listener.join()


def at_once(lives):
    """The most containers that ran at any moment."""
    starts = [life["start"] for life in lives.values()]
    return max(sum(life["start"] <= moment < life["die"] for life in lives.values()) for moment in starts)


@pytest.fixture
def hook():
    """What the stand-in for NVIDIA's hook wrote down, by container."""

    def read():
        lines = [json.loads(line) for line in RECORD.read_text().splitlines()]
        return {line["container"]: line["gpus"] for line in lines}

    return read


@pytest.mark.nvidia_hook
def test_each_container_is_given_exactly_its_leased_gpus_while_eight_overlap(run_jobs, hook):
    gpus = tuple(f"GPU-{number:02}" for number in range(13))
    found, containers = run_jobs(Inventory(gpus=gpus), [1, 2], 5)
    assert len(found) == len(containers) == 10
    assert at_once(containers) >= 8
    given = {identifier: hook()[identifier].split(",") for identifier in containers}
    for identifier, life in containers.items():
        leased, seen = found[life["job"]]
        assert given[identifier] == leased == seen["nvidia"].split(",")
        assert len(leased) == int(life["job"].split("-g")[1][0])
    for one, other in combinations(containers, 2):
        overlap = containers[one]["start"] < containers[other]["die"] and (
            containers[other]["start"] < containers[one]["die"]
        )
        assert not overlap or not set(given[one]) & set(given[other])


@pytest.mark.nvidia_hook
def test_each_node_is_given_its_own_share_of_the_leased_gpus(run_jobs, hook):
    found, containers = run_jobs(Inventory(gpus=("GPU-a", "GPU-b", "GPU-c", "GPU-d")), [4], 1, nodes=2)
    given = {life["node"]: hook()[identifier] for identifier, life in containers.items()}
    assert given == {"0": "GPU-a,GPU-b", "1": "GPU-c,GPU-d"}
    [(leased, seen)] = found.values()
    assert leased == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
    assert seen["nvidia"] == given["0"]


@pytest.fixture
def render_nodes():
    """Device nodes like AMD's, which only their group may use; they lead where /dev/null does."""
    Path("/dev/dri").mkdir(exist_ok=True)
    made = [Path(f"/dev/dri/renderD{number}") for number in range(240, 244)]
    made += [kfd for kfd in (Path("/dev/kfd"),) if not kfd.exists()]
    for number, node in enumerate(made):
        os.mknod(node, stat.S_IFCHR | 0o660, os.makedev(1, 3))
        node.chmod(0o660)
        os.chown(node, 0, 54000 + number)
    yield [node.name for node in made[:4]]
    for node in made:
        node.unlink()


@pytest.mark.root
def test_each_container_has_the_device_nodes_of_its_own_gpus_and_may_use_them(run_jobs, render_nodes):
    found, containers = run_jobs(Inventory(driver="rocm", gpus=tuple(render_nodes)), [0, 2], 2)
    assert at_once(containers) >= 2
    leased = {job: gpus for job, (gpus, _) in found.items()}
    assert sorted(chain.from_iterable(leased.values())) == render_nodes
    for gpus, seen in found.values():
        assert seen["nodes"] == dict.fromkeys(gpus, True)
        assert seen["kfd"] == bool(gpus)


def test_a_container_that_still_has_a_leased_gpu_is_removed_though_its_run_lives(docker_client, make_spec):
    """As of a session that was killed, while another one of the same run goes on."""
    image, made = find_base(docker_client, DEFAULT, environ=os.environ, progress=print).reference, []
    try:
        for gpu in ("GPU-leased", "GPU-of-others"):
            labels = {**make_spec(image="i", gpus=(gpu,)).labels, HOST_LABEL: docker_objects.host_id()}
            made.append(docker_client.containers.run(image, ["sleep", "60"], labels=labels, detach=True))
        DockerEngine(docker_client, ()).evict(("GPU-leased",))
        left = docker_client.api.containers(filters={"label": "allranks.gpus"})
        assert {item["Id"] for item in left} & {item.id for item in made} == {made[1].id}
    finally:
        for container in made:
            with suppress(NotFound):
                container.remove(force=True)
