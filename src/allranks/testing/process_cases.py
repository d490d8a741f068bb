"""Test cases whose ranks are forks: new ones for each test, or kept for a class."""

import functools
import inspect
import os
import types
import unittest
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.agent.launch.launch import LaunchContext, LaunchOptions
from allranks.agent.launch.launched_rank import LaunchedRank, RankOptions
from allranks.agent.launch.own_ranks import (
    RANKS_ATTRIBUTE,
    KeptRanks,
    OwnRanks,
    RankCallbacks,
    end_ranks_of,
    exit_process,
    expected_exits,
    live_ranks_of,
    no_ranks_error,
    run_in_kept_ranks,
)
from allranks.agent.launch.plain import PlainLaunchContext, rendezvous_file
from allranks.testing.environment import RankEnvironment, accelerator_count
from allranks.testing.markers import unregistered_mark
from allranks.testing.settings import fresh_dynamo
from allranks.testing.tensors import TensorEquality


class LauncherTestCase(TensorEquality, unittest.TestCase):
    """A test case whose test methods run in each rank; in the launching process, they wait for the ranks."""

    allranks_launcher: ClassVar[bool] = True
    """Tells an agent that the tests start their ranks themselves."""

    allranks_launch_context: ClassVar[LaunchContext | None] = None
    """Set by an agent in the launching process; None under a plain pytest or unittest."""

    MAIN_PROCESS_RANK: ClassVar[int] = -1
    """The ``rank`` of the test case in the launching process."""

    peer_grace: ClassVar[float] = 3.0
    """Seconds that the peers of a bad rank get to end by themselves; an agent has its own setting."""

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803 - unittest's
        name = method_name if methodName == "runTest" else methodName
        super().__init__(name)
        self.rank = self.MAIN_PROCESS_RANK
        test = getattr(self, name, None)
        if test is not None:
            setattr(self, name, self.join_or_run(test))

    def join_or_run(self, fn: Callable[[], object]) -> Callable[[], None]:
        """Wrap a test method: the launching process waits for the ranks, and a rank runs the test."""

        @functools.wraps(fn)
        def wrapper(self: LauncherTestCase) -> None:
            if self.rank == self.MAIN_PROCESS_RANK:
                self._join_processes(fn)
            else:
                fn()

        return types.MethodType(wrapper, self)

    def _join_processes(self, fn: Callable[[], object]) -> None:
        """Wait for the ranks, and raise their outcome as the test's."""
        raise NotImplementedError

    def _surroundings(self) -> LaunchContext:
        return self.allranks_launch_context or PlainLaunchContext(self.peer_grace)

    def _terms(self) -> LaunchOptions:
        return self._surroundings().launch_options(self)

    def _run_and_clean_up(self, test_name: str, tell: Callable[[Exception], None]) -> None:
        """Run a test and its clean-ups in this rank; `tell` reports at once that an exception ended the test."""
        with ExitStack() as stack:
            stack.callback(self._clean_up)
            try:
                getattr(self, test_name)()
            except unittest.SkipTest:
                raise
            except Exception as error:
                # Report first: peers may be waiting, and a clean-up may wait for them.
                tell(error)
                raise

    def _clean_up(self) -> None:
        """Call the clean-ups registered in this rank; unlike ``doCleanups``, this raises their errors."""
        with ExitStack() as stack:
            for function, args, kwargs in self._cleanups:  # type: ignore[attr-defined]
                stack.callback(function, *args, **kwargs)


DEFAULT_WORLD_SIZE = 4


class RankPipe:
    """Replaces torch's pipe, which a rank of :class:`MultiProcessTestCase` passes from ``_run`` to ``run_test``.

    Args:
        tell: Reports at once that this exception ended the test.

    Attributes:
        has_run: Whether the test itself has ended without an error.
    """

    def __init__(self, tell: Callable[[Exception], None]) -> None:
        self.tell = tell
        self.has_run = False

    def close(self) -> None:
        """Do nothing: a ``_run`` written for torch's class calls this."""


class MultiProcessTestCase(LauncherTestCase):
    """A test case whose every test starts its own ranks: forks of the launching process.

    The order for one test::

        setUp        in the launching process; it calls self._spawn_processes(), which starts the ranks
            test     in each rank, on a fresh test case with ``rank`` and ``file_name``; no setUp, no tearDown there
        tearDown     in the launching process, when all ranks have ended

    A rank that fails ends the test: its peers get ``peer_grace`` seconds, then they are stopped. The error names the
    first bad rank, with its traceback (:class:`~allranks.agent.launch.own_ranks.RankFailureError`). The test is
    skipped if all ranks skip, by an exception or by an exit code of torch's table; if only some do, that is an error.
    """

    TEST_ERROR_EXIT_CODE: ClassVar[int] = 10
    """The exit status of a rank whose test raised an exception."""

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803 - unittest's
        super().__init__(method_name, methodName)
        self.file_name = ""
        self._ranks: OwnRanks | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks. Override it to change that."""
        return DEFAULT_WORLD_SIZE

    @property
    def init_method(self) -> str:
        """The ``init_method`` for ``init_process_group``, which leads to a file that no other test uses."""
        return f"file://{self.file_name}"

    @property
    def destroy_pg_upon_exit(self) -> bool:
        """True if a rank that passed destroys its process groups before it ends. Override it to change that."""
        return True

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def setUp(self) -> None:
        """Prepare a test; a subclass calls this first and ``_spawn_processes`` last."""
        super().setUp()
        self.special_return_code_checks: dict[Callable[..., object], int] = {}
        """Tests whose rank 0 must end with the given exit status; other ranks may end with it, too."""
        self.skip_return_code_checks: list[Callable[..., object]] = []
        """Tests whose ranks may end in any way except by an exception of the test."""
        self.rank = self.MAIN_PROCESS_RANK
        self.file_name = self.enterContext(rendezvous_file())

    def _current_test_name(self) -> str:
        return self._testMethodName

    def _spawn_processes(self) -> None:
        """Start the ranks. Call it in ``setUp``, when all that they need is ready."""
        self._ranks = OwnRanks(self, self._surroundings(), int(self.world_size), self._be_rank, self.addCleanup)

    def _join_processes(self, fn: Callable[[], object]) -> None:
        """Wait for the ranks, and raise their outcome as the test's."""
        if self._ranks is None:
            raise no_ranks_error(self.id())
        self._ranks.join(expected_exits(self, fn))

    def _be_rank(self, launched: LaunchedRank, terms: RankOptions) -> int:
        """Run in a fork: run the test on a fresh test case, and report its outcome; returns the exit status."""
        outcome = launched.run(terms, lambda: self._run_in_rank(launched))
        return self.TEST_ERROR_EXIT_CODE if outcome.is_bad else 0

    def _run_in_rank(self, launched: LaunchedRank) -> None:
        pipe = RankPipe(launched.report_failure)
        try:
            self._run(launched.number, self._current_test_name(), self.file_name, pipe)
        except SystemExit as exit_:
            # A `_run` written for torch's class may exit after the test.
            if pipe.has_run and not exit_.code:
                return
            exit_process(exit_)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: RankPipe, **_kwargs: object) -> None:
        """Run in a rank. Override it to add something before or after ``run_test``."""
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        self.run_test(test_name, parent_pipe)

    def run_test(self, test_name: str, parent_pipe: RankPipe) -> None:
        """Run one test in this rank, then its clean-ups, and destroy any process group that is left.

        Raises:
            Exception: The exception of the test.
        """
        self._run_and_clean_up(test_name, parent_pipe.tell)
        parent_pipe.has_run = True
        if self.destroy_pg_upon_exit and dist.is_initialized():
            dist.destroy_process_group()


UNSET = -2
"""The default of ``world_size`` in a class."""

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

    The first test's ``setUp`` starts the ranks, after ``setUpClass``, and they create the default process group
    (:meth:`_init_pg`); ``tearDownClass`` makes them destroy it and leave. ``setUp`` and ``tearDown`` run only in the
    launching process. Each rank runs a test on a fresh object of the class, with ``rank`` and ``world_size``. State
    that earlier tests left on the class and in the process, such as ``cls.pg``, is still there.

    A test with a bad rank, or with only some ranks skipped, ends the ranks; the next test starts new ones. So the
    remaining tests run, while torch's own class skips them.
    """

    allranks_keeps_ranks: ClassVar[bool] = True
    """Tells an agent that consecutive tests of the class share their ranks."""

    world_size: int = UNSET
    """The number of ranks, as a number or a property; unless set, the number of devices of :meth:`device_type`."""

    rdvz_file: ClassVar[str | None] = None
    """The file at which the ranks meet."""

    timeout: ClassVar[timedelta] = timedelta(seconds=120)
    """The time limit of the process group's operations."""

    pg: ClassVar[dist.ProcessGroup]
    """The default process group, in a rank."""

    @classmethod
    def backend_str(cls) -> str | None:
        """The backend, such as ``"gloo"``; with None, torch chooses by the tensors' devices."""
        return None

    @classmethod
    def device_type(cls) -> str:
        """The kind of device that the class tests; a subclass may replace this method by a string."""
        device = torch.accelerator.current_accelerator()
        return "cpu" if device is None else device.type

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:  # noqa: ANN401, ARG003 - torch's signature
        """Options of the process group's backend; None for its defaults."""
        return None

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        """Create the default process group in a rank."""
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
        """Make the ranks destroy their process group and leave."""
        try:
            end_ranks_of(cls)
        finally:
            super().tearDownClass()

    def setUp(self) -> None:
        """Start the ranks, if this is the class's first test, or the first after a bad one."""
        super().setUp()
        self.rank = self.MAIN_PROCESS_RANK
        if live_ranks_of(type(self)) is None:
            self._start_ranks()

    def _start_ranks(self) -> None:
        cls = type(self)
        cls.world_size = cls._size_of_world()
        _skip_without_backend(cls.backend_str())
        life = RankCallbacks(join=self._join, run=cls._run_as, leave=destroy_group)
        ranks = KeptRanks(self, self._surroundings(), cls.world_size, life)
        cls.rdvz_file = ranks.file
        setattr(cls, RANKS_ATTRIBUTE, ranks)

    def _join(self, launched: LaunchedRank, file: str) -> None:
        """Join the process group; runs first in a rank."""
        cls = type(self)
        cls.rank, cls.rdvz_file = launched.number, file
        cls._init_pg(launched.number, launched.world_size, file)

    def _join_processes(self, fn: Callable[[], object]) -> None:  # noqa: ARG002 - the ranks find it by its name
        """Have the ranks run this test, and raise their outcome as the test's."""
        ranks = live_ranks_of(type(self))
        if ranks is None:
            msg = (
                f"there are no ranks for {self.id()}\n"
                "A test of this class runs only in ranks, and super().setUp(), which starts them, was not called.\n"
                "Call super().setUp() first in setUp."
            )
            raise RuntimeError(msg)
        run_in_kept_ranks(ranks, self)

    @classmethod
    def _size_of_world(cls) -> int:
        said = inspect.getattr_static(cls, "world_size")
        # A property needs an object, and a class method has none.
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
        self._run_and_clean_up(self._testMethodName, launched.report_failure)


def destroy_group() -> None:
    """Destroy the default process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _skip_without_backend(backend: str | None) -> None:
    is_available = _AVAILABLE.get(backend or "")
    if is_available is not None and not is_available():
        msg = f"this torch has no backend {backend}"
        raise unittest.SkipTest(msg)


def _device_at(place: int) -> torch.device:
    """The accelerator of a rank, which ranks share in turn if there are too few, or the CPU without any."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, place % torch.accelerator.device_count())


class DistributedTestBase(MultiProcessTestCase):
    """A :class:`MultiProcessTestCase` that starts its ranks in ``setUp``; a test makes its group by :meth:`create_pg`.

    Attributes that a subclass sets in ``setUp`` are those of the launching process: a rank does not have them.
    """

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._spawn_processes()

    def backend(self, device: str | torch.device) -> str:
        """The backend for tensors on a device, such as ``"nccl"`` for ``"cuda"``."""
        return dist.get_default_backend_for_device(torch.device(device).type)

    def create_pg(self, device: str | torch.device, world_size: int | None = None) -> dist.ProcessGroup:
        """Create the default process group; with an accelerator, this rank's own becomes its default device.

        Args:
            device: The kind of device, such as ``"cuda"``.
            world_size: The number of ranks that call this; None for all.
        """
        size = self.world_size if world_size is None else world_size
        kind = torch.device(device).type
        if kind != "cpu":
            own = torch.device(kind, *self.rank_to_device(kind)[self.rank])
            torch.accelerator.set_device_index(own.index)
            torch.set_default_device(own)
        store = FileStore(self.file_name, size)
        dist.init_process_group(self.backend(kind), world_size=size, rank=self.rank, store=store)
        if kind == "cpu":
            # Else the first connected rank could end its test while its peers still connect, which then fails (gloo).
            dist.barrier()
        return cast("dist.ProcessGroup", dist.group.WORLD)

    def rank_to_device(self, device: str | torch.device) -> dict[int, list[int]]:
        """The index of each rank's device; ranks share devices in turn if there are too few."""
        present = torch.get_device_module(torch.device(device).type).device_count()
        return {rank: [rank % present] for rank in range(self.world_size)}


class DynamoDistributedMultiProcTestCase(DistributedTestBase):
    """Tests of ``torch.compile`` on several ranks: each is a process with a process group and an empty Dynamo.

    Ranks are forks, so each forgets what the launching process has compiled. Two ranks run on the CPU over gloo if
    there is no accelerator.
    """

    init_pg: ClassVar[bool] = True
    """Whether each rank creates the default process group before the test; else the test does."""

    @property
    def world_size(self) -> int:
        """A rank for each accelerator; 2 without any. Override it to change that."""
        return accelerator_count() or 2

    @property
    def device(self) -> str:
        """This rank's device."""
        return str(_device_at(self.rank))

    def run_test(self, test_name: str, parent_pipe: RankPipe) -> None:
        """Run one test in this rank, with its process group, and Dynamo's caches and counters empty."""
        with fresh_dynamo():
            if self.init_pg:
                self.create_pg(self.device)
            super().run_test(test_name, parent_pipe)


class DynamoDistributedSingleProcTestCase(TensorEquality, unittest.TestCase):
    """Tests of ``torch.compile`` in one process, which is the only rank of a default process group.

    The class makes the group, and destroys it after its last test, or where ``setUpClass`` fails. Each test starts
    with Dynamo's caches and counters empty, and empties them, also if ``setUp`` or the test fails. A test that destroys
    the group leaves a new one to the next. Under ``allranks run`` each rank of the cell runs the tests, alone.
    """

    # Its only rank has its own world, so an agent need not create one.
    pytestmark: ClassVar[pytest.MarkDecorator] = unregistered_mark("no_process_group")

    rank: ClassVar[int] = 0
    """The rank in the group."""

    device: ClassVar[str] = "cpu"
    """This process's accelerator, or the CPU without any."""

    device_ids: ClassVar[list[int] | None] = None
    """For DDP, which finds the device by the model's parameters."""

    @classmethod
    def setUpClass(cls) -> None:
        """Create the process group."""
        super().setUpClass()
        cls.addClassCleanup(destroy_group)
        cls._join_alone()

    def setUp(self) -> None:
        """Empty Dynamo's caches and counters, now and after the test."""
        super().setUp()
        if not dist.is_initialized():
            self._join_alone()
        self.enterContext(fresh_dynamo())

    @classmethod
    def _join_alone(cls) -> None:
        own = _device_at(RankEnvironment.read().local_rank)
        cls.device = str(own)
        if own.index is not None:
            torch.accelerator.set_device_index(own.index)
        backend = dist.get_default_backend_for_device(own.type)
        dist.init_process_group(backend, store=HashStore(), rank=cls.rank, world_size=1)
