"""The pytest plugin with the fixtures and markers for tests that run on several ranks.

pytest always loads it if allranks is installed, so it imports torch only when a fixture needs it.
"""

import hashlib
import os
import shutil
import tempfile
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from allranks.agent.marks import FOREIGN_ATTRIBUTE
from allranks.protocol.launcher_variables import IN_A_JOB
from allranks.protocol.skip_codes import SkipCode
from allranks.testing.environment import RankEnvironment
from allranks.testing.markers import WrongMarkerError, is_foreign, marker_lines, requirements_of_item
from allranks.testing.plain_world import PlainWorld
from allranks.testing.shared_files import FileBarrier, GangFolder, TestFolder, publish, read_published
from allranks.testing.skips import skip
from allranks.testing.stores import open_store

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy


def seed_of(nodeid: str, environ: Mapping[str, str] = os.environ) -> int:
    """The seed of the running test, chosen by the agent; without an agent, a hash of the node id."""
    seed = environ.get("ALLRANKS_SEED")
    return int(seed) if seed is not None else zlib.crc32(nodeid.encode("utf-8", "surrogatepass"))


def generator_of_rank(seed: int, rank: int) -> "torch.Generator":
    """A CPU generator whose numbers differ between ranks and between seeds."""
    import torch

    digest = hashlib.blake2b(f"{seed} {rank}".encode(), digest_size=8).digest()
    # At most 63 bits: manual_seed takes a signed integer.
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


_TESTS_RUN = pytest.StashKey[int]()
_LAST_STORE = pytest.StashKey["TCPStore"]()
_LAST_FOLDER = pytest.StashKey[TestFolder]()
WORLD = pytest.StashKey[PlainWorld]()
"""The ranks under another launcher (torchrun, srun), or the single rank of plain pytest; created on first use."""


class SubgroupMaker(Protocol):
    """The type of the ``subgroup`` fixture."""

    def __call__(self, ranks: Sequence[int], *, timeout: timedelta | None = None) -> "dist.ProcessGroup":
        """Create a process group of some ranks, with the cell's backend.

        As with :func:`torch.distributed.new_group`, all ranks of the default group must make the same call, even if
        they are not members. The group is destroyed at the end of the test.

        Args:
            ranks: The global ranks of the members.
            timeout: Time limit of the group's collectives; None for the backend's default.

        Returns:
            The group, or ``torch.distributed.GroupMember.NON_GROUP_MEMBER`` on ranks that are not members.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of ``pytest --ranks``; jobs need them too, because addopts may contain them."""
    group = parser.getgroup("ranks", "tests on several ranks")
    text = "run each test on N processes (ranks) of this host at the same time, with a process group"
    group.addoption("--ranks", type=int, metavar="N", help=text)
    group.addoption("--ranks-backend", default="gloo", metavar="NAME", help="backend of the ranks (default: gloo)")
    text = "time limit of a test (default: 120)"
    group.addoption("--ranks-timeout", type=float, default=120.0, metavar="SECONDS", help=text)
    text = "debug rank N with pdb in this terminal when it fails or calls breakpoint(); disables all time limits"
    group.addoption("--pdb-rank", type=int, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and, in a job, fixtures that override those of pytest-xdist."""
    for line in marker_lines():
        config.addinivalue_line("markers", line)
    if IN_A_JOB in os.environ:
        config.pluginmanager.register(XdistFixtures(), "allranks-xdist-fixtures")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark tests that were written for another runner, so that the agent creates no process group for them."""
    for item in filter(is_foreign, items):
        setattr(item, FOREIGN_ATTRIBUTE, True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Count the tests; all ranks of a gang run the same tests, so the count is the same on all ranks."""
    item.config.stash[_TESTS_RUN] = item.config.stash.get(_TESTS_RUN, 0) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the requirements of a test before its fixtures are set up."""
    try:
        for requirement in requirements_of_item(item):
            requirement.check()
    except WrongMarkerError as error:
        pytest.fail(str(error), pytrace=False)
    if WORLD in item.config.stash and item.get_closest_marker("no_process_group"):
        item.config.stash[WORLD].leave()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the process group of ranks that allranks did not start."""
    if WORLD in config.stash:
        config.stash[WORLD].close()


@pytest.fixture(scope="session")
def rank_environment() -> RankEnvironment:
    """The values of the cell and this rank's position in it: a :class:`~allranks.testing.RankEnvironment`."""
    return RankEnvironment.read()


@pytest.fixture(scope="session")
def rank(rank_environment: RankEnvironment) -> int:
    """The number of this rank, from 0."""
    return rank_environment.rank


@pytest.fixture(scope="session")
def world_size(rank_environment: RankEnvironment) -> int:
    """The number of ranks."""
    return rank_environment.world_size


@pytest.fixture(scope="session")
def local_rank(rank_environment: RankEnvironment) -> int:
    """The index of this rank on its node, from 0."""
    return rank_environment.local_rank


@pytest.fixture(scope="session")
def backend(rank_environment: RankEnvironment) -> str:
    """The cell's backend, in lower case."""
    return rank_environment.backend


@pytest.fixture(scope="session")
def init_method(rank_environment: RankEnvironment) -> str:
    """The cell's init method: ``env``, ``tcp`` or ``file``."""
    return rank_environment.init_method


@pytest.fixture(scope="session")
def device(rank_environment: RankEnvironment) -> "torch.device":
    """The device for this rank's tensors: the rank's GPU if the cell has GPUs or its backend is NCCL, else the CPU.

    If the cell needs a GPU and there is none, the test is skipped.
    """
    import torch

    if rank_environment.device_type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        skip(SkipCode.NO_CUDA)
    return torch.device("cuda", rank_environment.local_rank % torch.cuda.device_count())


@pytest.fixture(scope="session")
def _plain_world(pytestconfig: pytest.Config, rank_environment: RankEnvironment) -> PlainWorld | None:
    """The world of ranks that allranks did not start; None under an agent."""
    if rank_environment.gang:
        return None
    return pytestconfig.stash.setdefault(WORLD, PlainWorld(rank_environment))


@pytest.fixture
def process_group(_plain_world: PlainWorld | None) -> "dist.ProcessGroup":
    """The default process group.

    The agent creates the group before the first test. Without an agent, for example under torchrun, this fixture does.
    """
    if _plain_world is not None:
        return _plain_world.join()
    from torch import distributed as dist

    group = dist.group.WORLD
    if group is None:
        msg = (
            "there is no default process group\n"
            "Either the test has the marker no_process_group, or a previous test has destroyed the group.\n"
            "Remove the marker, or call torch.distributed.init_process_group in your own fixture."
        )
        raise RuntimeError(msg)
    return group


@pytest.fixture
def subgroup(_plain_world: PlainWorld | None) -> Iterator[SubgroupMaker]:
    """A function that creates subgroups of the default group: a :class:`~allranks.testing.SubgroupMaker`.

    The groups are destroyed at the end of the test.
    """
    from torch import distributed as dist

    if _plain_world is not None:
        _plain_world.join()
    groups: list[dist.ProcessGroup] = []

    def make(ranks: Sequence[int], *, timeout: timedelta | None = None) -> "dist.ProcessGroup":
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=timeout)
        # Otherwise, the first connected rank could destroy a gloo group before all peers have connected to it.
        dist.barrier()
        if isinstance(group, dist.ProcessGroup):
            groups.append(group)
        return group

    yield make
    for group in reversed(groups):
        dist.destroy_process_group(group)


@pytest.fixture(scope="session")
def _gang_folder(
    rank_environment: RankEnvironment, _plain_world: PlainWorld | None, tmp_path_factory: pytest.TempPathFactory
) -> GangFolder:
    """The folder that the gang shares; without an agent, rank 0 creates a temporary one."""
    if rank_environment.shared is not None:
        return GangFolder(rank_environment.shared)
    if _plain_world is None:
        msg = "the agent has not set ALLRANKS_SHARED, the folder that the ranks share"
        raise RuntimeError(msg)
    return GangFolder(_plain_world.shared_folder(lambda: tmp_path_factory.mktemp("gang")))


@pytest.fixture
def _test_folder(
    request: pytest.FixtureRequest, rank_environment: RankEnvironment, _gang_folder: GangFolder
) -> TestFolder:
    """The folder that the ranks share in this test. Under an agent, the previous test's folder is removed."""
    stash = request.config.stash
    last = stash.get(_LAST_FOLDER, None)
    # No rank starts a test before all ranks have ended the previous one, so its folder is no longer in use.
    if last is not None and rank_environment.rank == 0 and rank_environment.shared is not None:
        shutil.rmtree(last.path, ignore_errors=True)  # what remains is removed with the job
    stash[_LAST_FOLDER] = folder = _gang_folder.test_folder(request.node.nodeid, stash.get(_TESTS_RUN, 0))
    return folder


class XdistFixtures:
    """The fixtures of pytest-xdist, for tests that were written for ``--dist each``: in a job, ranks act as workers."""

    @pytest.fixture(scope="session")
    def worker_id(self, rank: int) -> str:
        """The name of the worker: ``gw0`` on rank 0, and so on."""
        return f"gw{rank}"

    @pytest.fixture(scope="session")
    def testrun_uid(self, rank: int, _gang_folder: GangFolder) -> str:
        """An id that is the same on all ranks of a gang, and unique otherwise."""
        path = _gang_folder.path / "testrun_uid"
        if rank == 0:
            publish(path, uuid.uuid4().hex)
        return read_published(path, "the id of this run")


@pytest.fixture(scope="session")
def shared_dir(_gang_folder: GangFolder) -> Path:
    """A temporary directory that all ranks of the gang share; it exists as long as the gang."""
    return _gang_folder.files


@pytest.fixture
def shared_tmp_path(_test_folder: TestFolder) -> Path:
    """A temporary directory that all ranks share in this test."""
    return _test_folder.files


@pytest.fixture
def file_barrier(_test_folder: TestFolder, rank: int, world_size: int) -> FileBarrier:
    """A barrier that needs no process group: ``file_barrier(timeout=60.0)`` waits until all ranks have called it.

    See :class:`~allranks.testing.FileBarrier`.
    """
    return FileBarrier(_test_folder.barrier, rank, world_size)


@pytest.fixture
def broadcast_file(_test_folder: TestFolder, rank: int) -> Path:
    """The path of an empty temporary file that rank 0 creates and all ranks share; it needs no process group."""
    path = _test_folder.published / "file"
    if rank == 0:
        descriptor, name = tempfile.mkstemp(dir=_test_folder.published, prefix="broadcast-")
        os.close(descriptor)
        publish(path, name)
    return Path(read_published(path, "the name of the file"))


@pytest.fixture
def store(request: pytest.FixtureRequest, rank_environment: RankEnvironment, _test_folder: TestFolder) -> "TCPStore":
    """A new ``torch.distributed.TCPStore`` that rank 0 serves and all ranks use; it needs no process group."""
    opened = open_store(rank_environment, _test_folder.published / "store")
    # The server must exist until the slowest rank has ended the test, so rank 0 keeps it until its next test starts.
    # A session fixture would not work: it is torn down during the last test's teardown.
    request.config.stash[_LAST_STORE] = opened
    return opened


@pytest.fixture
def dynamo() -> Iterator[Mapping[str, Counter[str]]]:
    """Clears the caches of ``torch.compile`` before and after the test; the value is Dynamo's counters for this test.

    For example, ``dynamo["stats"]["unique_graphs"]`` is the number of compiled graphs.
    """
    from allranks.testing.settings import fresh_dynamo

    with fresh_dynamo() as counters:
        yield counters


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test, an integer that is the same on all ranks. The report shows the seed of each test."""
    return seed_of(request.node.nodeid)


@pytest.fixture
def rank_generator(seed: int, rank: int) -> "torch.Generator":
    """A CPU generator with a seed that depends on the test and the rank, so ranks draw different numbers."""
    return generator_of_rank(seed, rank)
