"""Test cases whose ranks live as long as the class."""

import inspect
import os
import unittest
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.harness.launchers.launched_rank import LaunchedRank
from allranks.testing.processes.kept_ranks import RANKS_ATTRIBUTE, KeptRanks, RankLife, end_ranks_of, kept_by, run_in
from allranks.testing.processes.launcher import LauncherTestCase

UNSET = -2
"""``world_size`` and ``rank`` of a class that says nothing about them."""

_AVAILABLE: Mapping[str, Callable[[], bool]] = MappingProxyType(
    {
        "nccl": dist.is_nccl_available,
        "gloo": dist.is_gloo_available,
        "mpi": dist.is_mpi_available,
        "ucc": dist.is_ucc_available,
        "xccl": dist.is_xccl_available,
    }
)


class MultiProcContinuousTest(LauncherTestCase):
    """A test case whose ranks, forks of the launching process, run one test of the class after the other.

    The ranks are started by the first test's ``setUp``, after ``setUpClass``, and make the default process group
    (:meth:`_init_pg`); ``tearDownClass`` has them destroy it and leave. ``setUp`` and ``tearDown`` run in the launching
    process alone. Each rank runs a test on a fresh object of the class, with ``rank`` and ``world_size``, and finds
    what earlier tests have left on the class and in the process, ``cls.pg`` for one.

    A test in which a rank goes wrong, or only some skip, ends the ranks; the next test starts others. So the remaining
    tests run, where torch's own class skips them.
    """

    allranks_keeps_ranks: ClassVar[bool] = True
    """By this an agent knows that tests of the class that follow each other share their ranks."""

    world_size: int = UNSET
    """How many ranks there are, as a number or a property; the number of devices of :meth:`device_type` unless set."""

    rdvz_file: ClassVar[str | None] = None
    """The file at which the ranks meet."""

    timeout: ClassVar[timedelta] = timedelta(seconds=120)
    """The time limit of the process group's operations."""

    pg: ClassVar[dist.ProcessGroup]
    """In a rank: the default process group."""

    @classmethod
    def backend_str(cls) -> str | None:
        """The backend, such as ``"gloo"``; None to have torch choose by the tensors' devices."""
        return None

    @classmethod
    def device_type(cls) -> str:
        """The kind of device that the class tests; a string in the place of this method does as well."""
        device = torch.accelerator.current_accelerator()
        return "cpu" if device is None else device.type

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:  # noqa: ANN401, ARG003 - torch's signature
        """Options of the process group's backend; None for its defaults."""
        return None

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        """Make the default process group in a rank."""
        os.environ["LOCAL_RANK"] = str(rank)
        dist.init_process_group(
            cls.backend_str(),
            world_size=world_size,
            rank=rank,
            store=FileStore(rdvz_file, world_size),
            pg_options=cls.opts(),
            timeout=cls.timeout,
        )
        if dist.group.WORLD is not None:
            cls.pg = dist.group.WORLD

    @classmethod
    def tearDownClass(cls) -> None:
        """Have the ranks destroy their process group and leave."""
        try:
            end_ranks_of(cls)
        finally:
            super().tearDownClass()

    def setUp(self) -> None:
        """Start the ranks, if this is the class's first test, or the first after a bad one."""
        super().setUp()
        self.rank = self.MAIN_PROCESS_RANK
        if kept_by(type(self)) is None:
            self._start_ranks()

    def _start_ranks(self) -> None:
        cls = type(self)
        cls.world_size = cls._size_of_world()
        _skip_without_backend(cls.backend_str())
        life = RankLife(join=self._join, run=cls._run_as, leave=_destroy_group)
        ranks = KeptRanks(self, self._surroundings(), cls.world_size, life)
        cls.rdvz_file = ranks.file
        setattr(cls, RANKS_ATTRIBUTE, ranks)

    def _join(self, launched: LaunchedRank, file: str) -> None:
        """What a rank does first."""
        cls = type(self)
        cls.rank, cls.rdvz_file = launched.number, file
        cls._init_pg(launched.number, launched.world_size, file)

    def _join_processes(self, fn: Callable[[], object]) -> None:  # noqa: ARG002 - the ranks know it by its name
        """Have the ranks run this test, and make their outcomes the test's."""
        ranks = kept_by(type(self))
        if ranks is None:
            msg = (
                f"no rank is there for {self.id()}\n"
                "A test of this class runs in ranks alone, and super().setUp(), which starts them, was not called.\n"
                "Call super().setUp() first in setUp."
            )
            raise RuntimeError(msg)
        run_in(ranks, self)

    @classmethod
    def _size_of_world(cls) -> int:
        said = inspect.getattr_static(cls, "world_size")
        # A property needs an object, and the property of a class is asked before there is one.
        size = int(said.fget(object.__new__(cls))) if isinstance(said, property) and said.fget else int(cls.world_size)
        if size != UNSET:
            return size
        devices = cls._count_devices()
        if devices == 0:
            msg = f"there is no device of the kind {cls._kind_of_device()}"
            raise unittest.SkipTest(msg)
        return devices

    @classmethod
    def _kind_of_device(cls) -> str:
        return cls.device_type() if callable(cls.device_type) else str(cls.device_type)

    @classmethod
    def _count_devices(cls) -> int:
        return int(torch.get_device_module(cls._kind_of_device()).device_count())

    def _run_as(self, launched: LaunchedRank) -> None:
        """Run this test in a rank."""
        self.rank = launched.number
        self._run_and_clean_up(self._testMethodName, launched.tell)


def _destroy_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _skip_without_backend(backend: str | None) -> None:
    is_available = _AVAILABLE.get(backend or "")
    if is_available is not None and not is_available():
        msg = f"this torch has no backend {backend}"
        raise unittest.SkipTest(msg)
