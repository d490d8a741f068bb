"""The contract of engines, tested with real agents, ranks and containers."""

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from engine_contract import ENDLESS, EngineContract, Heard, HeardOnce, with_small_suite

from allranks.engines import agents
from allranks.engines.base import Engine, FileCopy, JobSpec, Passthrough
from allranks.engines.docker import DockerEngine
from allranks.engines.package import package_files, package_folder
from allranks.engines.process import ProcessEngine
from allranks.errors import EngineError
from allranks.images.built_image import ensure_image
from allranks.matrix.model import Image
from allranks.protocol.records import (
    AgentFailed,
    Finished,
    RankEnded,
)

FILLER = """
import os
from contextlib import suppress
from pathlib import Path

PIECE = b"x" * (1 << 20)


def test_that_fills_a_folder(rank):
    if rank == 1:
        with suppress(OSError), Path(os.path.expandvars("FOLDER/dump")).open("wb", buffering=0) as file:
            for _ in range(700):
                file.write(PIECE)


def test_that_does_no_harm():
    print("hello")
"""

OWNER = """
import pickle
import sys
from pathlib import Path

from allranks.ownership import own_run
from allranks.engines.package import package_files

spec, name, package = pickle.load(sys.stdin.buffer)
if name == "docker":
    from allranks.images.docker_client import connect
    from allranks.engines.docker import DockerEngine

    engine = DockerEngine(connect(), package_files())
else:
    from allranks.engines.process import ProcessEngine

    engine = ProcessEngine(package)
with own_run(spec.run_id), engine.start(spec):
    print("started", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An engine and a job for it.

    Attributes:
        make: An engine whose agents find these files beside the package ``allranks``.
        package: The folder with the package, for the process engine.
    """

    name: str
    make: Callable[..., Engine]
    spec: JobSpec
    package: Path


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with the package and other files."""

    def make(*beside: FileCopy) -> Path:
        folder = tmp_path_factory.mktemp("package")
        (folder / "allranks").symlink_to(package_folder())
        for copy in beside:
            (folder / copy.target).write_bytes(copy.source.read_bytes())
        return folder

    return make


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def bench(request, packages, make_spec, tmp_path):
    spec = with_small_suite(make_spec())
    if request.param == "docker":
        client = request.getfixturevalue("docker_client")
        image = Image(name="cpu", torch="2.13.0", packages=("numpy", "expecttest"))
        reference = ensure_image(image, root=tmp_path, client=client, progress=print).reference
        return Bench(
            name="docker",
            make=lambda *beside: DockerEngine(client, (*package_files(), *beside)),
            spec=replace(spec, image=reference),
            package=spec.code,
        )
    return Bench(
        name="process",
        make=lambda *beside: ProcessEngine(packages(*beside)),
        spec=replace(spec, python=sys.executable),
        package=packages(),
    )


@pytest.fixture(autouse=True)
def nothing_is_left(run_id, left_of):
    yield
    assert left_of(run_id) == []


IN_DOCKER = pytest.mark.parametrize("bench", [pytest.param("docker", marks=pytest.mark.docker)], indirect=True)


class TestContract(EngineContract):
    @pytest.fixture
    def engine(self, bench):
        return bench.make()

    @pytest.fixture
    def spec(self, bench):
        return bench.spec


def test_only_the_job_that_fills_the_results_folder_is_blamed(bench, tmp_path):
    (bench.spec.code / "suite" / "test_tiny.py").write_text(FILLER.replace("FOLDER", "../results"))
    sink, results = Heard(), tmp_path / "results"
    results.mkdir()
    with bench.make().start(bench.spec) as job:
        job.go()
        assert job.wait(sink).status == 0
        with suppress(EngineError):
            job.collect(results)
    outcomes = {key: outcome for key, outcome in sink.ends.items() if key[1] == 1}
    assert outcomes == {("test_that_fills_a_folder", 1): "errored", ("test_that_does_no_harm", 1): "passed"}
    [blamed] = [record for record in sink if isinstance(record, RankEnded) and record.outcome.value == "errored"]
    assert (blamed.nodeid.partition("::")[2], blamed.rank) == ("test_that_fills_a_folder", 1)
    assert "this rank wrote" in blamed.message
    # The volume has room for the code, too.
    assert re.search(r"\(51\d MiB\) was filled|a job may return only 512 MiB", blamed.message)
    assert sink.first(Finished)


@IN_DOCKER
@pytest.mark.parametrize("init_method", ["env", pytest.param("file", marks=pytest.mark.thorough)])
def test_who_fills_the_folder_of_its_tests_is_blamed_and_the_next_gang_has_room(bench, init_method):
    """A file store needs shared memory."""
    (bench.spec.code / "suite" / "test_tiny.py").write_text(FILLER.replace("FOLDER", "$ALLRANKS_SHARED"))
    sink = Heard()
    agent = replace(bench.spec.agent, init_method=init_method)
    spec = replace(bench.spec, agent=agent, resources=replace(bench.spec.resources, disk_bytes=64 << 20))
    with bench.make().start(spec) as job:
        job.go()
        job.wait(sink)
    blamed = {name for (name, rank), outcome in sink.ends.items() if (rank, outcome) == (1, "errored")}
    assert blamed == {"test_that_fills_a_folder"}
    assert sink.ends["test_that_does_no_harm", 0] == sink.ends["test_that_does_no_harm", 1] == "passed"


def test_records_that_a_job_sends_while_it_is_stopped_are_read(bench):
    (bench.spec.code / "suite" / "test_tiny.py").write_text(ENDLESS)

    def be_late():
        job._deadline = 0.0

    with bench.make().start(bench.spec) as job:
        sink = HeardOnce(be_late)
        job.go()
        assert job.wait(sink).timed_out
    assert sink.first(Finished)


def test_the_time_before_a_job_gets_its_turn_does_not_count(bench):
    spec = replace(bench.spec, resources=replace(bench.spec.resources, seconds=60))
    job = bench.make().start(spec)
    with job as running:
        running._deadline = 0.0  # as if the job before it had taken all this one's time
        running.go()
        assert not running.wait(Heard()).timed_out


def test_an_agent_without_torch_is_an_error(bench, tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    sink = Heard()
    with bench.make(FileCopy(source=tmp_path / "torch.py", target=Path("torch.py"))).start(bench.spec) as job:
        job.go()
        ending = job.wait(sink)
    assert "cannot import torch" in sink.first(AgentFailed).message
    assert ending.status == 1


@IN_DOCKER
def test_a_container_that_the_daemon_cannot_start_leaves_nothing_at_once(bench, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 3600)
    nowhere = Passthrough(driver="rocm", nodes=("/dev/allranks-has-no-such-device",))
    spec = replace(bench.spec, gpus=("GPU-0",), passthrough=nowhere)
    with pytest.raises(EngineError, match="could not be started"), bench.make().start(spec):
        pass


def _do_nothing(*_arguments):
    pass


@pytest.fixture
def disturbed(bench, docker_client, tmp_path):
    """Run an endless job while its containers are disturbed; return the errors of the job and of its results."""

    def run(disturb, nodes=1, seconds=60.0):
        (bench.spec.code / "suite" / "test_tiny.py").write_text(ENDLESS)
        agent = replace(bench.spec.agent, nodes=nodes)
        spec = replace(bench.spec, agent=agent, resources=replace(bench.spec.resources, seconds=seconds))
        mine = {"label": f"allranks.run={spec.run_id}"}
        errors = []
        with bench.make().start(spec) as job:
            once = iter([disturb])
            act = HeardOnce(
                lambda: next(once, _do_nothing)(docker_client.api, docker_client.api.containers(filters=mine))
            )
            job.go()
            for step in (lambda: job.wait(act), lambda: job.collect(tmp_path)):
                try:
                    step()
                except EngineError as error:
                    errors.append(error.what)
        return errors

    return run


@IN_DOCKER
@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_container_that_is_removed_by_hand_is_an_error_and_leaves_no_volume(disturbed, nodes):
    """As by `docker rm --force`, which keeps volumes; leftovers are checked at the end of the test."""
    errors = disturbed(lambda api, found: api.remove_container(found[0]["Id"], force=True), nodes)
    assert "was removed while the job ran" in errors[0]


@IN_DOCKER
def test_a_container_that_is_killed_by_hand_is_an_error_with_the_signal(disturbed):
    [error] = disturbed(lambda api, found: api.kill(found[0]["Id"]))
    assert "was killed (SIGKILL), and its files are lost" in error


@IN_DOCKER
def test_a_container_that_is_paused_until_its_limit_is_an_error(disturbed, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 1.0)
    [error] = disturbed(lambda api, found: api.pause(found[0]["Id"]), seconds=15.0)
    assert "was paused (docker pause) until its time limit" in error


@IN_DOCKER
@pytest.mark.parametrize(
    "is_removed", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["removed", "joined"]
)
def test_a_network_that_another_program_changes_is_removed(disturbed, docker_client, is_removed):
    def meddle(api, found):
        [network] = found[0]["NetworkSettings"]["Networks"].values()
        if is_removed:
            for container in found:
                api.disconnect_container_from_network(container["Id"], network["NetworkID"], force=True)
            api.remove_network(network["NetworkID"])
        else:
            api.connect_container_to_network(stranger.id, network["NetworkID"])
        for container in found:
            api.kill(container["Id"])

    image = docker_client.images.list("allranks/base")[0].id
    stranger = docker_client.containers.run(image, ["sleep", "60"], detach=True, network_mode="bridge")
    try:
        assert disturbed(meddle, nodes=2)
        stranger.reload()
        assert stranger.status == "running"
    finally:
        stranger.remove(force=True)


@contextmanager
def owner_of(bench: Bench, run_id: str):
    """A process that owns a run with a job of this engine on two nodes."""
    spec = replace(bench.spec, run_id=run_id, agent=replace(bench.spec.agent, nodes=2))
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        try:
            pickle.dump((spec, bench.name, bench.package), owner.stdin)
            owner.stdin.flush()
            assert owner.stdout.readline() == b"started\n"
            yield owner
        finally:
            owner.stdin.close()
            owner.wait(30)


def test_what_a_dead_owner_left_is_removed_and_what_a_living_one_has_is_not(bench, left_of):
    dead, alive = (f"{bench.spec.run_id}-{name}" for name in ("dead", "alive"))
    with owner_of(bench, alive):
        with owner_of(bench, dead) as owner:
            owner.kill()
        left = {name.partition(" ")[0] for name in left_of(dead)}
        assert left >= ({"container", "network", "volume"} if bench.name == "docker" else {"process"})
        bench.make().clean_up()
        assert left_of(dead) == []
        kept = left_of(alive)
        assert any(name.startswith(("container", "process")) for name in kept)
    assert left_of(alive) == []
