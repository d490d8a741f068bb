"""A pytest plugin: the fixtures of a rank test.

The agent registers it with ``-p allranks.testing.fixtures``; so can a plain pytest.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Protocol

import pytest
import torch
import torch.distributed as dist

from allranks.testing.environment import RankEnvironment
from allranks.testing.skipcodes import SkipCode
from allranks.testing.skips import requirements_of, skip


class SubgroupMaker(Protocol):
    """What the ``subgroup`` fixture gives a test."""

    def __call__(self, ranks: Sequence[int], *, timeout: timedelta | None = None) -> dist.ProcessGroup:
        """Make a group of ``ranks``, over the cell's backend.

        Every rank of the default group must make the same call, member or not, just as with
        :func:`torch.distributed.new_group`; the group ends with the test.

        Args:
            ranks: The global ranks of its members.
            timeout: How long its collectives may take; the backend's default when None.

        Returns:
            The group; to a rank outside of it ``torch.distributed.GroupMember.NON_GROUP_MEMBER``.
        """


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "no_process_group: this test makes its own process group, or needs none")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look at what the test requires before any fixture is made for it."""
    if isinstance(item, pytest.Function):
        for requirement in requirements_of(item.function):
            requirement.check()


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
    """How many ranks the cell has."""
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
def device(rank_environment: RankEnvironment) -> torch.device:
    """Where this rank's tensors belong: its own GPU in a cell that has GPUs or runs NCCL, else the CPU."""
    if rank_environment.backend != "nccl" and rank_environment.gpu_count == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        skip(SkipCode.NO_CUDA)
    return torch.device("cuda", rank_environment.local_rank % torch.cuda.device_count())


@pytest.fixture
def process_group() -> dist.ProcessGroup:
    """The default process group, which the agent made before the first test."""
    group = dist.group.WORLD
    if group is None:
        msg = (
            "there is no default process group\n"
            "The agent makes it before the first test, and this process was started by something else, or the test "
            "before this one destroyed it.\n"
            "Run the suite with `allranks run`, or call torch.distributed.init_process_group in a fixture of your own."
        )
        raise RuntimeError(msg)
    return group


@pytest.fixture
def subgroup() -> Iterator[SubgroupMaker]:
    """Makes sub-groups of the default group, and destroys them when the test ends."""
    made: list[dist.ProcessGroup] = []

    def make(ranks: Sequence[int], *, timeout: timedelta | None = None) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=timeout)
        if isinstance(group, dist.ProcessGroup):
            made.append(group)
        return group

    yield make
    for group in reversed(made):
        dist.destroy_process_group(group)
