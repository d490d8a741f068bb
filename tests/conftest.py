"""What tests of several folders share: a Docker daemon, a SLURM cluster, locks of their own, values, and commands."""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import docker
import pytest
from hypothesis import settings

from allranks import ownership, plugin_manager
from allranks.cli.main import commands, main
from allranks.engines.base import Finding, JobSpec
from allranks.engines.package import package_folder
from allranks.errors import EngineError, ExitCode
from allranks.images.docker_client import connect
from allranks.ownership import own_run
from allranks.protocol.config import AgentConfig

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find

import services

pytest.register_assert_rewrite("engine_contract")

# No example has a time limit: a busy machine is no reason to fail. `nox -s thorough` has the profile `thorough`.
settings.register_profile("quick", deadline=None, max_examples=15)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("quick")

# A shell that starts the tests in the background ignores SIGINT for them, and for all that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# nox gives all runs of one session one name; here they are many, side by side.
os.environ.pop("ALLRANKS_RUN_ID", None)

SLURM_CLUSTER = Path(__file__).parents[1] / "scripts" / "slurm-cluster"

MATRIX = """\
[matrix]
backend = ["gloo", "nccl"]
world_size = [1, 2]
gpu_count = [0, 2]

[[matrix.exclude]]
when = "backend == 'nccl' and gpu_count != world_size"
reason = "a GPU for each rank"

[[matrix.exclude]]
when = "backend == 'gloo' and gpu_count > 0"
reason = "gloo is tested on CPU tensors"

[suites.tiny]
path = "suite"

[suites.other]
path = "suite"
when = "world_size == 2"

[images.all]
torch = "2.13.0"
"""

MakeSpec = Callable[..., JobSpec]
LeftOf = Callable[[str], list[str]]
Allranks = Callable[..., tuple[object, str, str]]


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the SLURM of a machine that has one."""
    if find_spec("allranks.plugins") and find_spec("allranks.plugins.slurm"):
        monkeypatch.setattr("allranks.plugins.slurm.engine._COMMANDS", ("no-sbatch",))


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of services."""
    services.register(config)


@pytest.hookimpl(tryfirst=True)  # before pytest's own choice by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark integration tests; files with containers run first, because they take longest."""
    services.mark(items)
    slow = {item.path for item in items if item.get_closest_marker("docker")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose service is missing, or fail it where the service is required."""
    services.check(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests of each service."""
    if lines := services.summary(terminalreporter.stats):
        terminalreporter.section("services")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session", autouse=True)
def package_for_children() -> Iterator[None]:
    """Let processes that tests start find the package under test, from whatever folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(package_folder().parent), prepend=os.pathsep)
        # Where runs say more, or in colours, or where no output is lost.
        for name in ("GITHUB_ACTIONS", "FORCE_COLOR", "NO_COLOR", "PYTHONUNBUFFERED"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    """A client of the daemon, for tests with the marker `docker`."""
    with closing(connect()) as client:
        yield client


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """A cluster of scripts/slurm-cluster in a folder of its own.

    Attributes:
        variables: The script's variables for it, beside its folder.
    """

    folder: Path
    variables: dict[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that uses the cluster."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        own = {"SLURM_CONF": str(self.folder / "slurm.conf"), "SLURM_CLUSTER_DIR": str(self.folder)}
        return {**outside, **own, **self.variables}

    def script(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run scripts/slurm-cluster, which may fail."""
        command = [str(SLURM_CLUSTER), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=600, check=False)

    def run(self, *command: str) -> str:
        """Run a command of SLURM; its standard output.

        Raises:
            subprocess.CalledProcessError: It failed.
        """
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True
        )
        return done.stdout.strip()

    def wait_until(self, expected: str, *command: str, limit: float = 60) -> None:
        """Repeat a command of SLURM until it prints the expected line, for at most `limit` seconds."""
        deadline = time.monotonic() + limit
        while (printed := self.run(*command)) != expected:
            assert time.monotonic() < deadline, f"{command} prints {printed!r}, not {expected!r}"
            time.sleep(0.1)


@pytest.fixture(scope="session")
def start_slurm_cluster() -> Callable[..., AbstractContextManager[SlurmCluster]]:
    """``with start_slurm_cluster(SLURM_CLUSTER_GPUS="1") as cluster``: a cluster of isolated nodes while it lasts."""

    @contextmanager
    def start(**variables: str) -> Iterator[SlurmCluster]:
        # Not pytest's own temporary folder: paths of sockets are short.
        with tempfile.TemporaryDirectory(prefix="allranks-slurm-", ignore_cleanup_errors=True) as folder:
            cluster = SlurmCluster(folder=Path(folder), variables={"SLURM_CLUSTER_ISOLATED": "yes", **variables})
            try:
                started = cluster.script("start")
                assert started.returncode == 0, started.stderr
                yield cluster
            finally:
                cluster.script("stop")

    return start


@pytest.fixture(scope="session")
def slurm_cluster(start_slurm_cluster: Callable[..., AbstractContextManager[SlurmCluster]]) -> Iterator[SlurmCluster]:
    """A cluster of three isolated nodes, n1 to n3, of 8 CPUs and 4 GPUs each."""
    with start_slurm_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def left_of() -> Iterator[LeftOf]:
    """What exists of a run: processes, scratch folders, its lock, and what carries its label in the daemon."""
    with ExitStack() as stack:
        client = None
        with suppress(EngineError):
            client = stack.enter_context(closing(connect()))
        yield lambda run_id: [*_on_this_host(run_id), *(_in_daemon(client, run_id) if client else ())]


def _on_this_host(run_id: str) -> Iterator[str]:
    marker = run_id.encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            if any(variable.endswith(b"=" + marker) for variable in variables) and process.name != str(os.getpid()):
                yield f"process {process.name} {(process / 'cmdline').read_bytes()}"
    yield from map(str, Path(tempfile.gettempdir()).glob(f"allranks-job-{run_id}.*"))
    yield from map(str, ownership.lock_folder().glob(f"run-{run_id}"))


def _in_daemon(client: docker.DockerClient, run_id: str) -> Iterator[str]:
    mine = {"label": f"allranks.run={run_id}"}
    yield from (f"container {container['Names']}" for container in client.api.containers(all=True, filters=mine))
    yield from (f"volume {volume['Name']}" for volume in client.api.volumes(filters=mine)["Volumes"] or [])
    yield from (f"network {network['Name']}" for network in client.api.networks(filters=mine))


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock folder of the test's own, and a host of its own: whoever is alive in there is dead to all others."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(ownership, "lock_folder", lambda: folder)
    for module in ("gpu_leases", "unhealthy_gpus"):
        monkeypatch.setattr(f"allranks.runner.{module}.lock_folder", lambda: folder)
    for module in ("engines.docker_objects", "images.leftovers"):
        monkeypatch.setattr(f"allranks.{module}.host_id", lambda: f"test-{os.getpid()}")
    return folder


@pytest.fixture
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the doctor's check of torch, which takes seconds and has its own tests, by its usual findings."""
    found = [Finding("Python", "3.13"), Finding("torch", "2.13.0"), Finding("gloo", "works")]
    monkeypatch.setattr("allranks.cli.host_checks.check_torch", lambda *_, **__: iter(found))


@pytest.fixture
def run_id() -> str:
    """A name for a run that no other has."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def lines() -> list[str]:
    """A list that appends the argument when it is called."""

    class Lines(list):
        __call__ = list.append

    return Lines()


@pytest.fixture
def plugins_anew() -> Iterator[None]:
    """Plug-ins and commands are found anew in the test, and after it."""
    caches = (plugin_manager.load_plugins, commands)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def other(plugins_anew: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:  # noqa: ARG001
    """``other(name, load)``: add a plug-in of another package."""
    points = []

    def add(name: str, load: Callable[[], object]) -> None:
        points.append(SimpleNamespace(name=name, value=f"{name}.allranks", load=load))
        found = {"allranks.plugins": points}
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found.get(group, []))

    return add


@pytest.fixture
def owned_run(run_id: str) -> Iterator[str]:
    """A run that is owned while the test lasts, so that nobody else on this host reaps what it starts."""
    with own_run(run_id):
        yield run_id


@pytest.fixture
def make_spec(tmp_path: Path, owned_run: str) -> MakeSpec:
    """``make_spec(paths=("suite",), world_size=2, ...)``: a job over gloo, of a run that is owned."""
    from engine_contract import job_of_two_ranks

    spec = job_of_two_ranks(owned_run, tmp_path / "code")

    def make(**changes: object) -> JobSpec:
        fields = AgentConfig.__dataclass_fields__
        own = {name: value for name, value in changes.items() if name in fields}
        rest = {name: value for name, value in changes.items() if name not in fields}
        return replace(spec, agent=replace(spec.agent, **own), **rest)

    return make


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository, in which commands are run; three cells and five jobs, and nothing of the environment's."""
    folder = tmp_path / "repository"
    (folder / "suite").mkdir(parents=True)
    (folder / "suite" / "test_tiny.py").write_text("")
    (folder / "matrix.toml").write_text(MATRIX)
    for name in ("ENGINE", "RUN_ID", "RESULTS", "GPU_MODE", "IMAGES", "PLAN_FILE", "PACK"):
        monkeypatch.delenv(f"ALLRANKS_{name}", raising=False)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def allranks(capsys: pytest.CaptureFixture[str]) -> Allranks:
    """Run a command; its exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[object, str, str]:
        code: object
        try:
            code = main(arguments)
        except SystemExit as ending:  # argparse's own way out
            code = ending.code
        return (code, *capsys.readouterr())

    return run


OF_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "ALLRANKS_",
    "TORCHELASTIC",
    "SLURM_",
    "OMPI_",
    "PMI",
    "BACKEND",
)


@pytest.fixture(scope="session")
def environment_without_ranks():
    """The variables of a process that no launcher, and no agent, has started."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}


@pytest.fixture(scope="session")
def plugins():
    """The folder that `nox -s tests` installs other people's plugins into: our own tests must not load them."""
    folder = os.environ.get("ALLRANKS_TEST_PLUGINS")
    if not folder:
        pytest.skip("ALLRANKS_TEST_PLUGINS names no folder of plugins; nox -s tests makes one")
    assert Path(folder).is_dir()
    return folder


@pytest.fixture
def runs(monkeypatch):
    """The runs that would have begun, each as its jobs and options."""
    calls = []

    def run(_matrix, jobs, options, _say):
        calls.append(([job.id for job in jobs], options))
        return ExitCode.OK

    monkeypatch.setattr("allranks.runner.run_jobs.run", run)
    return calls
