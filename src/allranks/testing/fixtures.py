"""A pytest plugin: the fixtures and markers of a rank test, and the seed of each rank.

Every pytest loads it where allranks is installed, so it imports torch only when a fixture needs it.
"""

import hashlib
import os
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
from allranks.testing.shared_files import FileBarrier, GangFolder, TestFolder, publish, read_published, remove
from allranks.testing.skips import skip
from allranks.testing.stores import open_store

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy


def seed_of(nodeid: str, environ: Mapping[str, str] = os.environ) -> int:
    """The seed of the running test that the agent chose and recorded; without an agent, a hash of the node id."""
    told = environ.get("ALLRANKS_SEED")
    return int(told) if told is not None else zlib.crc32(nodeid.encode("utf-8", "surrogatepass"))


def generator_of_rank(seed: int, rank: int) -> "torch.Generator":
    """A CPU generator with numbers that differ from those of all other ranks and tests."""
    import torch

    digest = hashlib.blake2b(f"{seed} {rank}".encode(), digest_size=8).digest()
    # At most 63 bits: manual_seed takes a signed number.
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


_TESTS_RUN = pytest.StashKey[int]()
_LAST_STORE = pytest.StashKey["TCPStore"]()
_LAST_FOLDER = pytest.StashKey[TestFolder]()
WORLD = pytest.StashKey[PlainWorld]()
"""The world of ranks that allranks did not start, once something needs it."""


class SubgroupMaker(Protocol):
    """The type of the ``subgroup`` fixture."""

    def __call__(self, ranks: Sequence[int], *, timeout: timedelta | None = None) -> "dist.ProcessGroup":
        """Create a group of ``ranks``, over the cell's backend.

        Every rank of the default group must make the same call, member or not, as with
        :func:`torch.distributed.new_group`. The group ends with the test.

        Args:
            ranks: The global ranks of its members.
            timeout: Time limit of its collectives; None for the backend's default.

        Returns:
            The group; ``torch.distributed.GroupMember.NON_GROUP_MEMBER`` on ranks outside of it.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of ``pytest --ranks``, for jobs too: a configuration file may have one in its addopts."""
    group = parser.getgroup("ranks", "tests on several ranks")
    meaning = "run each test on N ranks of this host, in lockstep, as one cell of allranks"
    group.addoption("--ranks", type=int, metavar="N", help=meaning)
    group.addoption("--ranks-backend", default="gloo", metavar="NAME", help="their backend (default: gloo)")
    meaning = "time limit of a test (default: 120)"
    group.addoption("--ranks-timeout", type=float, default=120.0, metavar="SECONDS", help=meaning)
    meaning = "stop rank N in pdb, on this terminal, where it fails or calls breakpoint(); without limits"
    group.addoption("--pdb-rank", type=int, metavar="N", help=meaning)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and in a job what comes after pytest-xdist's own."""
    for line in marker_lines():
        config.addinivalue_line("markers", line)
    if IN_A_JOB in os.environ:
        config.pluginmanager.register(XdistFixtures(), "allranks-xdist-fixtures")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark tests that were written for another runner: an agent makes no process group for them."""
    for item in filter(is_foreign, items):
        setattr(item, FOREIGN_ATTRIBUTE, True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Count the tests: all ranks of a gang run the same tests, so the count is equal on all of them."""
    item.config.stash[_TESTS_RUN] = item.config.stash.get(_TESTS_RUN, 0) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the requirements of a test before any of its fixtures is set up."""
    try:
        for requirement in requirements_of_item(item):
            requirement.check()
    except WrongMarkerError as error:
        pytest.fail(str(error), pytrace=False)
    if WORLD in item.config.stash and item.get_closest_marker("no_process_group"):
        item.config.stash[WORLD].leave()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave the world that this process itself has joined."""
    if WORLD in config.stash:
        config.stash[WORLD].close()


@pytest.fixture(scope="session")
def rank_environment() -> RankEnvironment:
    """This rank's place in its cell."""
    return RankEnvironment.read()


@pytest.fixture(scope="session")
def rank(rank_environment: RankEnvironment) -> int:
    """This rank, from 0."""
    return rank_environment.rank


@pytest.fixture(scope="session")
def world_size(rank_environment: RankEnvironment) -> int:
    """The number of ranks of the cell."""
    return rank_environment.world_size


@pytest.fixture(scope="session")
def local_rank(rank_environment: RankEnvironment) -> int:
    """This rank's place on its own node, from 0."""
    return rank_environment.local_rank


@pytest.fixture(scope="session")
def backend(rank_environment: RankEnvironment) -> str:
    """The cell's backend, in lower case."""
    return rank_environment.backend


@pytest.fixture(scope="session")
def init_method(rank_environment: RankEnvironment) -> str:
    """How the ranks met: ``env``, ``tcp`` or ``file``."""
    return rank_environment.init_method


@pytest.fixture(scope="session")
def device(rank_environment: RankEnvironment) -> "torch.device":
    """The device for this rank's tensors: its own GPU in a cell that has GPUs or runs NCCL, else the CPU."""
    import torch

    if rank_environment.device_type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        skip(SkipCode.NO_CUDA)
    return torch.device("cuda", rank_environment.local_rank % torch.cuda.device_count())


@pytest.fixture(scope="session")
def _plain_world(pytestconfig: pytest.Config, rank_environment: RankEnvironment) -> PlainWorld | None:
    """The world of ranks that allranks did not start; None under an agent, which makes gangs."""
    if rank_environment.gang:
        return None
    return pytestconfig.stash.setdefault(WORLD, PlainWorld(rank_environment))


@pytest.fixture
def process_group(_plain_world: PlainWorld | None) -> "dist.ProcessGroup":
    """The default process group, which the agent created before the first test; without an agent, this fixture does."""
    if _plain_world is not None:
        return _plain_world.join()
    from torch import distributed as dist

    group = dist.group.WORLD
    if group is None:
        msg = (
            "there is no default process group\n"
            "The agent makes it before the first test, and the test is marked no_process_group, or the test before "
            "this one destroyed the group.\n"
            "Remove the marker, or call torch.distributed.init_process_group in a fixture of your own."
        )
        raise RuntimeError(msg)
    return group


@pytest.fixture
def subgroup(_plain_world: PlainWorld | None) -> Iterator[SubgroupMaker]:
    """Creates subgroups of the default group, and destroys them when the test ends."""
    from torch import distributed as dist

    if _plain_world is not None:
        _plain_world.join()
    made: list[dist.ProcessGroup] = []

    def make(ranks: Sequence[int], *, timeout: timedelta | None = None) -> "dist.ProcessGroup":
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=timeout)
        # Else the first connected rank could destroy the group while its peers still connect, which then fails (gloo).
        dist.barrier()
        if isinstance(group, dist.ProcessGroup):
            made.append(group)
        return group

    yield make
    for group in reversed(made):
        dist.destroy_process_group(group)


@pytest.fixture(scope="session")
def _gang_folder(
    rank_environment: RankEnvironment, _plain_world: PlainWorld | None, tmp_path_factory: pytest.TempPathFactory
) -> GangFolder:
    """The folder that this rank's gang shares; without an agent, rank 0 makes a temporary one."""
    if rank_environment.shared is not None:
        return GangFolder(rank_environment.shared)
    if _plain_world is None:
        msg = "the agent names no folder that the ranks of its gang share (ALLRANKS_SHARED)"
        raise RuntimeError(msg)
    return GangFolder(_plain_world.shared_folder(lambda: tmp_path_factory.mktemp("gang")))


@pytest.fixture
def _test_folder(
    request: pytest.FixtureRequest, rank_environment: RankEnvironment, _gang_folder: GangFolder
) -> TestFolder:
    """The folder that the ranks share in this test. Under an agent, the previous test's folder is removed."""
    stash = request.config.stash
    last = stash.get(_LAST_FOLDER, None)
    # No rank begins a test before all have ended the previous one, so no rank uses that folder any more.
    if last is not None and rank_environment.rank == 0 and rank_environment.shared is not None:
        remove(last)
    stash[_LAST_FOLDER] = folder = _gang_folder.test_folder(request.node.nodeid, stash.get(_TESTS_RUN, 0))
    return folder


class XdistFixtures:
    """The fixtures of pytest-xdist for tests that it ran with ``--dist each``: in a job, the workers are the ranks."""

    @pytest.fixture(scope="session")
    def worker_id(self, rank: int) -> str:
        """``gw0`` on rank 0, and so on."""
        return f"gw{rank}"

    @pytest.fixture(scope="session")
    def testrun_uid(self, rank: int, _gang_folder: GangFolder) -> str:
        """An id that the ranks of a gang share, and nobody else has."""
        notice = _gang_folder.path / "testrun_uid"
        if rank == 0:
            publish(notice, uuid.uuid4().hex)
        return read_published(notice, "the id of this run")


@pytest.fixture(scope="session")
def shared_dir(_gang_folder: GangFolder) -> Path:
    """A temporary directory that all ranks of the gang share while the gang lives."""
    return _gang_folder.files


@pytest.fixture
def shared_tmp_path(_test_folder: TestFolder) -> Path:
    """A temporary directory that all ranks share, new for each test and removed afterwards."""
    return _test_folder.files


@pytest.fixture
def file_barrier(_test_folder: TestFolder, rank: int, world_size: int) -> FileBarrier:
    """``file_barrier(timeout=60.0)`` blocks each rank until all have arrived, without a process group."""
    return FileBarrier(_test_folder.barrier, rank, world_size)


@pytest.fixture
def broadcast_file(_test_folder: TestFolder, rank: int) -> Path:
    """An empty temporary file that rank 0 creates and all ranks share, without a process group."""
    notice = _test_folder.published / "file"
    if rank == 0:
        descriptor, name = tempfile.mkstemp(dir=_test_folder.published, prefix="broadcast-")
        os.close(descriptor)
        publish(notice, name)
    return Path(read_published(notice, "the name of the file"))


@pytest.fixture
def store(request: pytest.FixtureRequest, rank_environment: RankEnvironment, _test_folder: TestFolder) -> "TCPStore":
    """A new, empty store over all ranks, served by rank 0; it needs no process group."""
    opened = open_store(rank_environment, _test_folder.published / "store")
    # The server must outlive the test on the slowest rank, and rank 0 does not know about that before its next test
    # begins. No fixture lives that long: session fixtures end within the teardown of the last test.
    request.config.stash[_LAST_STORE] = opened
    return opened


@pytest.fixture
def dynamo() -> Iterator[Mapping[str, Counter[str]]]:
    """``torch.compile`` starts from empty caches, and leaves none: the counters of this test's compilations."""
    from allranks.testing.settings import fresh_dynamo

    with fresh_dynamo() as counters:
        yield counters


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test, equal on all ranks; the report shows it."""
    return seed_of(request.node.nodeid)


@pytest.fixture
def rank_generator(seed: int, rank: int) -> "torch.Generator":
    """A CPU generator seeded by the test's seed and the rank: each rank draws different numbers."""
    return generator_of_rank(seed, rank)
