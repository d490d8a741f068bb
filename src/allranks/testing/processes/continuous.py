"""Test cases whose ranks live as long as the class."""

import inspect
import os
import unittest
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.harness.channel import End
from allranks.harness.gangs.arrival import Step
from allranks.harness.launchers.launch import Launch, Workplace
from allranks.harness.launchers.launched_rank import LaunchedRank, RankTerms
from allranks.testing.processes.launcher import LauncherTestCase
from allranks.testing.processes.meeting_file import meeting_file
from allranks.testing.processes.result import raise_for

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


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """The living ranks of a class.

    Attributes:
        names: What a test's number, as the ranks know it, stands for.
        resources: Closed with them.
    """

    launch: Launch
    workplace: Workplace
    names: Sequence[str]
    resources: ExitStack

    def close(self) -> None:
        """Stop what still lives."""
        with self.resources:
            self.launch.close()


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

    _ranks: ClassVar[_Ranks | None] = None

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
            cls._end_ranks()
        finally:
            super().tearDownClass()

    def setUp(self) -> None:
        """Start the ranks, if this is the class's first test, or the first after a bad one."""
        super().setUp()
        self.rank = self.MAIN_PROCESS_RANK
        if type(self).__dict__.get("_ranks") is None:
            self._start_ranks()

    def _start_ranks(self) -> None:
        cls = type(self)
        cls.world_size = cls._size_of_world()
        _skip_without_backend(cls.backend_str())
        with ExitStack() as resources:
            cls.rdvz_file = resources.enter_context(meeting_file())
            workplace = resources.enter_context(self._surroundings().workplace(cls))
            names = tuple(sorted(dir(cls)))
            launch = Launch(workplace, cls.world_size, lambda rank: self._be_rank(rank, names), self._terms())
            resources.callback(launch.close)
            step = launch.start()
            self._raise_for(step, workplace)
            cls._ranks = _Ranks(launch=launch, workplace=workplace, names=names, resources=resources.pop_all())

    def _raise_for(self, step: Step, workplace: Workplace) -> None:
        terms = self._terms()
        raise_for(step, results=workplace.results, nodeid=terms.nodeid, may_disagree=terms.may_disagree)

    def _join_processes(self, fn: Callable[[], object]) -> None:  # noqa: ARG002 - the ranks know it by its name
        """Have the ranks run this test, and make their outcomes the test's."""
        ranks = type(self).__dict__.get("_ranks")
        if ranks is None:
            msg = (
                f"no rank is there for {self.id()}\n"
                "A test of this class runs in ranks alone, and super().setUp(), which starts them, was not called.\n"
                "Call super().setUp() first in setUp."
            )
            raise RuntimeError(msg)
        try:
            step = ranks.launch.run(self._terms(), ranks.names.index(self._testMethodName))
            self._raise_for(step, ranks.workplace)
        except unittest.SkipTest:
            raise
        except BaseException:
            # What the ranks have in common, above all the process group, is not to be relied on any more.
            self._take_ranks()
            ranks.close()
            raise

    @classmethod
    def _take_ranks(cls) -> _Ranks | None:
        # A class does not share ranks with the class that it inherits from.
        ranks = cls.__dict__.get("_ranks")
        cls._ranks = None
        return ranks

    @classmethod
    def _end_ranks(cls) -> None:
        ranks = cls._take_ranks()
        if ranks is None:
            return
        with ranks.resources:
            step = ranks.launch.end()
            last = ranks.launch.last
            raise_for(step, results=ranks.workplace.results, nodeid=last.nodeid, may_disagree=last.may_disagree)

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

    def _be_rank(self, launched: LaunchedRank, names: Sequence[str]) -> int:
        """What a fork does: make the process group, run tests as it is told to, and destroy the group."""
        cls = type(self)
        cls.rank = launched.number
        terms = self._surroundings().rank_terms(self)
        if not launched.start(terms, lambda: cls._init_pg(launched.number, launched.world_size, str(cls.rdvz_file))):
            return 1
        for command in launched.commands():
            if isinstance(command, End):
                launched.end(terms, _destroy_group)
                return 0
            terms = cls._run_in_rank(cls(names[command.index]), launched)
        return 1

    def _run_in_rank(self, launched: LaunchedRank) -> RankTerms:
        self.rank = launched.number
        terms = self._surroundings().rank_terms(self)
        launched.run(terms, lambda: self._run_and_clean_up(self._testMethodName, launched.tell))
        return terms


def _destroy_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _skip_without_backend(backend: str | None) -> None:
    is_available = _AVAILABLE.get(backend or "")
    if is_available is not None and not is_available():
        msg = f"this torch has no backend {backend}"
        raise unittest.SkipTest(msg)
