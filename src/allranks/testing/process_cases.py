"""Test cases that start their own ranks as forks, either for each test or for all tests of a class."""

import functools
import inspect
import os
import types
import unittest
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, ClassVar, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore, HashStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.agent.launch.launch import LaunchContext
from allranks.agent.launch.launched_rank import LaunchedRank, RankOptions, destroy_group
from allranks.agent.launch.own_ranks import (
    RANKS_ATTRIBUTE,
    KeptRanks,
    OwnRanks,
    RankCallbacks,
    end_ranks_of,
    exit_process,
    expected_exits,
    no_ranks_error,
    run_in_kept_ranks,
    running_ranks_of,
)
from allranks.agent.launch.plain import PlainLaunchContext, rendezvous_file
from allranks.testing.environment import RankEnvironment, accelerator_count
from allranks.testing.markers import unregistered_mark
from allranks.testing.settings import fresh_dynamo
from allranks.testing.tensors import TensorEquality


class LauncherTestCase(TensorEquality, unittest.TestCase):
    """Base class of test cases whose methods run in each rank; in the launching process, they wait for the ranks."""

    allranks_launcher: ClassVar[bool] = True
    """Read by the agent: the tests start their ranks themselves."""

    allranks_launch_context: ClassVar[LaunchContext | None] = None
    """Set by the agent in the launching process; None under plain pytest or unittest."""

    MAIN_PROCESS_RANK: ClassVar[int] = -1
    """The ``rank`` of the test case in the launching process."""

    peer_grace: ClassVar[float] = 3.0
    """Seconds for the peers of a failed rank to end by themselves, without an agent."""

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

    def _launch_context(self) -> LaunchContext:
        return self.allranks_launch_context or PlainLaunchContext(self.peer_grace)

    def _run_and_clean_up(self, test_name: str, report_failure: Callable[[Exception], None]) -> None:
        """Run a test and its cleanups in this rank; if the test fails, call `report_failure` before the cleanups."""
        with ExitStack() as stack:
            stack.callback(self._clean_up)
            try:
                getattr(self, test_name)()
            except unittest.SkipTest:
                raise
            except Exception as error:
                # Report first: peers may be waiting for this rank, and a cleanup may wait for peers.
                report_failure(error)
                raise

    def _clean_up(self) -> None:
        """Call the cleanups that were registered in this rank; unlike ``doCleanups``, this raises their errors."""
        with ExitStack() as stack:
            for function, args, kwargs in self._cleanups:  # type: ignore[attr-defined]
                stack.callback(function, *args, **kwargs)


DEFAULT_WORLD_SIZE = 4


class RankPipe:
    """Replaces torch's pipe, which a rank of :class:`MultiProcessTestCase` passes from ``_run`` to ``run_test``.

    Attributes:
        report_failure: Reports immediately that an exception ended the test.
        has_passed: Whether the test has ended without an error.
    """

    def __init__(self, report_failure: Callable[[Exception], None]) -> None:
        self.report_failure = report_failure
        self.has_passed = False

    def close(self) -> None:
        """Do nothing; called by overrides of ``_run`` that were written for torch's class."""


class MultiProcessTestCase(LauncherTestCase):
    """A test case in which each test starts new ranks, which are forks of the launching process.

    Each test runs in this order::

        setUp        in the launching process; must call self._spawn_processes(), which starts the ranks
            test     in each rank, on a new test case with ``rank`` and ``file_name``, without setUp and tearDown
        tearDown     in the launching process, after all ranks have ended

    If a rank fails, its peers have ``peer_grace`` seconds to end, and are then stopped. The test fails with the
    traceback of the first failed rank (:class:`~allranks.agent.launch.own_ranks.RankFailureError`). The test is skipped
    if all ranks skip, either by an exception or by one of torch's exit codes. If only some ranks skip, the test fails.
    """

    TEST_ERROR_EXIT_CODE: ClassVar[int] = 10
    """Exit status of a rank whose test raised an exception."""

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803 - unittest's
        super().__init__(method_name, methodName)
        self.file_name = ""
        self._ranks: OwnRanks | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks; override this property to change it."""
        return DEFAULT_WORLD_SIZE

    @property
    def init_method(self) -> str:
        """An ``init_method`` for ``init_process_group``: a file that no other test uses."""
        return f"file://{self.file_name}"

    @property
    def destroy_pg_upon_exit(self) -> bool:
        """Whether ranks that passed destroy their process group before they exit; override it to change this."""
        return True

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def setUp(self) -> None:
        """Prepare a test; an override must call this first and ``_spawn_processes`` last."""
        super().setUp()
        self.special_return_code_checks: dict[Callable[..., object], int] = {}
        """Tests in which rank 0 must exit with the given status; the other ranks may exit with it."""
        self.skip_return_code_checks: list[Callable[..., object]] = []
        """Tests whose ranks may exit with any status."""
        self.rank = self.MAIN_PROCESS_RANK
        self.file_name = self.enterContext(rendezvous_file())

    def _current_test_name(self) -> str:
        return self._testMethodName

    def _spawn_processes(self) -> None:
        """Start the ranks. Call this in ``setUp``, after everything that the ranks need has been prepared."""
        self._ranks = OwnRanks(self, self._launch_context(), int(self.world_size), self._be_rank, self.addCleanup)

    def _join_processes(self, fn: Callable[[], object]) -> None:
        """Wait for the ranks, and raise their outcome as the test's."""
        if self._ranks is None:
            raise no_ranks_error(self.id())
        self._ranks.join(expected_exits(self, fn))

    def _be_rank(self, launched: LaunchedRank, options: RankOptions) -> int:
        """Run in a fork: run the test on a new test case, and report its outcome; returns the exit status."""
        outcome = launched.run(options, lambda: self._run_in_rank(launched))
        return self.TEST_ERROR_EXIT_CODE if outcome.is_bad else 0

    def _run_in_rank(self, launched: LaunchedRank) -> None:
        pipe = RankPipe(launched.report_failure)
        try:
            self._run(launched.number, self._current_test_name(), self.file_name, pipe)
        except SystemExit as exit_:
            # Overrides of `_run` that were written for torch's class may exit after the test.
            if pipe.has_passed and not exit_.code:
                return
            exit_process(exit_)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: RankPipe, **_kwargs: object) -> None:
        """Run in a rank; override this method to run code before or after ``run_test``."""
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        self.run_test(test_name, parent_pipe)

    def run_test(self, test_name: str, parent_pipe: RankPipe) -> None:
        """Run the test and its cleanups in this rank, and destroy the process group, if there is one.

        Args:
            test_name: The name of the test method.
            parent_pipe: The object that was passed to ``_run``.

        Raises:
            Exception: The exception of the test.
        """
        self._run_and_clean_up(test_name, parent_pipe.report_failure)
        parent_pipe.has_passed = True
        if self.destroy_pg_upon_exit:
            destroy_group()


UNSET = -2
"""The default of ``world_size`` in a class."""


class MultiProcContinuousTest(LauncherTestCase):
    """A test case whose ranks, forks of the launching process, run all tests of the class.

    The first test's ``setUp`` starts the ranks, which create the default process group (:meth:`_init_pg`).
    ``tearDownClass`` makes them destroy the group and exit. ``setUp`` and ``tearDown`` run only in the launching
    process. Each rank runs a test on a new object of the class with ``rank`` and ``world_size``. State that earlier
    tests left on the class, such as ``cls.pg``, or in the process is kept.

    If a rank fails, or if only some ranks skip, all ranks are stopped, and the next test starts new ones. So the
    remaining tests run; torch's own class skips them.
    """

    allranks_keeps_ranks: ClassVar[bool] = True
    """Read by the agent: consecutive tests of the class share their ranks."""

    world_size: int = UNSET
    """The number of ranks, as an integer or a property; by default, the number of devices of :meth:`device_type`."""

    rdvz_file: ClassVar[str | None] = None
    """The file for the rendezvous of the ranks."""

    timeout: ClassVar[timedelta] = timedelta(seconds=120)
    """Time limit of the process group's collectives."""

    pg: ClassVar[dist.ProcessGroup]
    """The default process group, in a rank."""

    @classmethod
    def backend_str(cls) -> str | None:
        """The backend, such as ``"gloo"``; if None, torch chooses one for each type of device."""
        return None

    @classmethod
    def device_type(cls) -> str:
        """The type of device that the class tests; a derived class may replace this method with a string."""
        device = torch.accelerator.current_accelerator()
        return "cpu" if device is None else device.type

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:  # noqa: ANN401, ARG003 - torch's signature
        """The options of the process group's backend; None for the defaults."""
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
        """Make the ranks destroy their process group and exit."""
        try:
            end_ranks_of(cls)
        finally:
            super().tearDownClass()

    def setUp(self) -> None:
        """Start the ranks before the first test, and again after a failed test."""
        super().setUp()
        self.rank = self.MAIN_PROCESS_RANK
        if running_ranks_of(type(self)) is None:
            self._start_ranks()

    def _start_ranks(self) -> None:
        cls = type(self)
        cls.world_size = cls._resolve_world_size()
        _skip_without_backend(cls.backend_str())
        callbacks = RankCallbacks(join=self._join, run=cls._run_as, leave=destroy_group)
        ranks = KeptRanks(self, self._launch_context(), cls.world_size, callbacks)
        cls.rdvz_file = ranks.file
        setattr(cls, RANKS_ATTRIBUTE, ranks)

    def _join(self, launched: LaunchedRank, file: str) -> None:
        """Create the process group; called in each new rank."""
        cls = type(self)
        cls.rank, cls.rdvz_file = launched.number, file
        cls._init_pg(launched.number, launched.world_size, file)

    def _join_processes(self, fn: Callable[[], object]) -> None:  # noqa: ARG002 - the ranks look it up by its name
        """Run this test in the ranks, and raise their outcome as the test's."""
        ranks = running_ranks_of(type(self))
        if ranks is None:
            msg = (
                f"no rank was started for {self.id()}\n"
                "Tests of this class run only in ranks, and setUp did not call super().setUp(), which starts them.\n"
                "Call super().setUp() first in setUp."
            )
            raise RuntimeError(msg)
        run_in_kept_ranks(ranks, self)

    @classmethod
    def _resolve_world_size(cls) -> int:
        value = inspect.getattr_static(cls, "world_size")
        if isinstance(value, property) and value.fget:
            size = int(value.fget(object.__new__(cls)))  # a property needs an object
        else:
            size = int(cls.world_size)
        if size != UNSET:
            return size
        device_type = cls.device_type() if callable(cls.device_type) else str(cls.device_type)
        if devices := int(torch.get_device_module(device_type).device_count()):
            return devices
        msg = f"there is no {device_type} device"
        raise unittest.SkipTest(msg)

    def _run_as(self, launched: LaunchedRank) -> None:
        """Run this test in a rank."""
        self.rank = launched.number
        self._run_and_clean_up(self._testMethodName, launched.report_failure)


def _skip_without_backend(backend: str | None) -> None:
    is_available = getattr(dist, f"is_{backend}_available", None)
    if is_available is not None and not is_available():
        msg = f"this torch has no backend {backend}"
        raise unittest.SkipTest(msg)


def _device_of(rank: int) -> torch.device:
    """The accelerator of a rank, or the CPU if there are none; if there are too few, ranks share accelerators."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, rank % torch.accelerator.device_count())


class DistributedTestBase(MultiProcessTestCase):
    """A :class:`MultiProcessTestCase` that starts its ranks in ``setUp``.

    Tests create their process group with :meth:`create_pg`. Attributes that a derived class sets in ``setUp`` exist
    only in the launching process, not in the ranks.
    """

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._spawn_processes()

    def backend(self, device: str | torch.device) -> str:
        """The name of the default backend for a device, such as ``"nccl"`` for ``"cuda"``."""
        return dist.get_default_backend_for_device(torch.device(device).type)

    def create_pg(self, device: str | torch.device, world_size: int | None = None) -> dist.ProcessGroup:
        """Create the default process group; an accelerator also becomes the default device of its rank.

        Args:
            device: A device or a type of device, such as ``"cuda"``; only the type is used.
            world_size: The number of ranks that call this method; None for all.

        Returns:
            The process group.
        """
        size = self.world_size if world_size is None else world_size
        device_type = torch.device(device).type
        if device_type != "cpu":
            own = torch.device(device_type, *self.rank_to_device(device_type)[self.rank])
            torch.accelerator.set_device_index(own.index)
            torch.set_default_device(own)
        store = FileStore(self.file_name, size)
        dist.init_process_group(self.backend(device_type), world_size=size, rank=self.rank, store=store)
        if device_type == "cpu":
            # Otherwise, the first connected rank could end its test before all peers have connected to it (gloo).
            dist.barrier()
        return cast("dist.ProcessGroup", dist.group.WORLD)

    def rank_to_device(self, device: str | torch.device) -> dict[int, list[int]]:
        """A list with the index of the rank's device, by rank; if there are too few devices, ranks share them."""
        present = torch.get_device_module(torch.device(device).type).device_count()
        return {rank: [rank % present] for rank in range(self.world_size)}


class DynamoDistributedMultiProcTestCase(DistributedTestBase):
    """A test case for ``torch.compile`` on several ranks, each with a process group and empty Dynamo caches.

    There is one rank for each accelerator. Without accelerators, two ranks run on the CPU with gloo.
    """

    init_pg: ClassVar[bool] = True
    """Whether each rank creates the default process group before the test; otherwise, the test must create it."""

    @property
    def world_size(self) -> int:
        """The number of accelerators, or 2 if there are none; override this property to change it."""
        return accelerator_count() or 2

    @property
    def device(self) -> str:
        """This rank's device, such as ``"cuda:0"``."""
        return str(_device_of(self.rank))

    def run_test(self, test_name: str, parent_pipe: RankPipe) -> None:
        """Run the test in this rank, with a process group and with empty Dynamo caches and counters."""
        with fresh_dynamo():
            if self.init_pg:
                self.create_pg(self.device)
            super().run_test(test_name, parent_pipe)


class DynamoDistributedSingleProcTestCase(TensorEquality, unittest.TestCase):
    """A test case for ``torch.compile`` in a single process, the only rank of a default process group.

    ``setUpClass`` creates the group; it is destroyed after the last test, or if ``setUpClass`` fails. Dynamo's caches
    and counters are cleared before and after each test, even if ``setUp`` or the test fails. If a test destroys the
    group, the next test gets a new one. Under ``allranks run``, each rank of the cell runs the tests on its own.
    """

    # The class creates its own process group, so the agent must not create one.
    pytestmark: ClassVar[pytest.MarkDecorator] = unregistered_mark("no_process_group")

    rank: ClassVar[int] = 0
    """The rank in the group: always 0."""

    device: ClassVar[str] = "cpu"
    """The device of this process: an accelerator, or the CPU if there are none."""

    device_ids: ClassVar[list[int] | None] = None
    """The argument ``device_ids`` for DDP: None, because DDP takes the device from the model's parameters."""

    @classmethod
    def setUpClass(cls) -> None:
        """Create the process group."""
        super().setUpClass()
        cls.addClassCleanup(destroy_group)
        cls._join_alone()

    def setUp(self) -> None:
        """Clear Dynamo's caches and counters, now and after the test."""
        super().setUp()
        if not dist.is_initialized():
            self._join_alone()
        self.enterContext(fresh_dynamo())

    @classmethod
    def _join_alone(cls) -> None:
        own = _device_of(RankEnvironment.read().local_rank)
        cls.device = str(own)
        if own.index is not None:
            torch.accelerator.set_device_index(own.index)
        backend = dist.get_default_backend_for_device(own.type)
        dist.init_process_group(backend, store=HashStore(), rank=cls.rank, world_size=1)
