"""Skips that say, by torch's exit code, what the surroundings lack.

Each requirement can be used in two ways, and is looked at only in the rank and only when its test runs, never while
the suite is imported::

    @require_gpus(2)
    def test_peer_copy(device): ...

    def test_checkpoint(backend):
        require_gpus(2).check()

The decorator is the better of the two: with our plugin it skips before the call phase, so the agent can keep the ranks.
"""

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NoReturn, ParamSpec, TypeVar

import pytest
import torch
import torch.distributed as dist

from allranks.harness.outcome import SkipKind
from allranks.testing import skipcodes
from allranks.testing.environment import RankEnvironment
from allranks.testing.skipcodes import SkipCode

P = ParamSpec("P")
R = TypeVar("R")

REQUIREMENTS_ATTRIBUTE = "allranks_requirements"
"""Where a decorated test keeps its requirements, in the order in which they are looked at."""


class EnvironmentSkip(pytest.skip.Exception):  # type: ignore[misc,name-defined]
    """A skip whose cause is the surroundings and not the author of the test.

    Args:
        code: torch's exit code for this cause.
        detail: What is lacking here, in words; empty when the code says it all.
    """

    # pytest takes the words "Skipped: " off the reason that it shows, and these two are what it prints before a reason.
    __module__ = "builtins"
    __qualname__ = "Skipped"

    def __init__(self, code: SkipCode, detail: str = "") -> None:
        self.code = code
        super().__init__(_reason(code, detail), _use_item_location=True)

    @property
    def kind(self) -> SkipKind:
        """Whether hardware is lacking, or something else."""
        return skipcodes.kind(self.code)


def _reason(code: SkipCode, detail: str) -> str:
    if not detail:
        return skipcodes.reason(code)
    # The table's own words for the generic code say no more than that there is a reason.
    return detail if code is SkipCode.GENERIC else f"{skipcodes.reason(code)}: {detail}"


def skip(code: SkipCode, detail: str = "") -> NoReturn:
    """Skip the running test with one of torch's exit codes.

    Raises:
        EnvironmentSkip: Always.
    """
    raise EnvironmentSkip(code, detail)


@dataclass(frozen=True)
class Requirement:
    """Something a test needs of its surroundings: a decorator for the test, or :meth:`check` inside it.

    Args:
        check: Raises :class:`EnvironmentSkip` where the surroundings lack it, else returns.
    """

    check: Callable[[], None]

    def __call__(self, test: Callable[P, R]) -> Callable[P, R]:
        """Skip ``test`` where this requirement is not met."""
        if isinstance(test, type):
            msg = f"a requirement decorates test functions, and {test.__name__} is a class: decorate its methods"
            raise TypeError(msg)

        @functools.wraps(test)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            self.check()
            return test(*args, **kwargs)

        setattr(guarded, REQUIREMENTS_ATTRIBUTE, (self, *requirements_of(test)))
        return guarded


def requirements_of(test: Callable[..., object]) -> tuple[Requirement, ...]:
    """The requirements that ``test`` was decorated with, outermost first."""
    found: tuple[Requirement, ...] = getattr(test, REQUIREMENTS_ATTRIBUTE, ())
    return found


def require_gpus(n: int) -> Requirement:
    """The test needs ``n`` GPUs that this rank can see (codes 74, 75, 77, 80 to 85)."""
    code = skipcodes.multi_gpu(n)

    def check() -> None:
        if not torch.cuda.is_available():
            skip(SkipCode.NO_CUDA)
        if torch.cuda.device_count() < n:
            skip(code, f"{torch.cuda.device_count()} of {n}")

    return Requirement(check)


def skip_if_small_world_size(minimum: int) -> Requirement:
    """The test needs at least ``minimum`` ranks (code 73)."""

    def check() -> None:
        world_size = RankEnvironment.read().world_size
        if world_size < minimum:
            skip(SkipCode.SMALL_WORLD_SIZE, f"{world_size} of at least {minimum} ranks")

    return Requirement(check)


def _check_even_world_size() -> None:
    world_size = RankEnvironment.read().world_size
    if world_size % 2:
        skip(SkipCode.ODD_WORLD_SIZE, f"{world_size} ranks")


skip_if_odd_world_size = Requirement(_check_even_world_size)
"""The test needs an even number of ranks (code 87)."""


def require_backend_available(name: str) -> Requirement:
    """The test needs a torch that has the backend ``name`` (code 72), whatever the cell's own backend is."""

    def check() -> None:
        if not dist.is_backend_available(name):
            skip(SkipCode.BACKEND_UNAVAILABLE, f"this torch has no {name}")

    return Requirement(check)


def require_backend_in(*names: str) -> Requirement:
    """The test is about these backends, and the cell's own must be one of them (code 72)."""

    def check() -> None:
        backend = RankEnvironment.read().backend
        if backend not in names:
            skip(SkipCode.BACKEND_UNAVAILABLE, f"it is about {' and '.join(names)}, and this cell runs {backend}")

    return Requirement(check)


require_gloo = require_backend_available("gloo")
"""The test needs a torch that is built with gloo (code 72)."""


def _check_nccl() -> None:
    if not dist.is_nccl_available():
        skip(SkipCode.NO_NCCL)


require_nccl = Requirement(_check_nccl)
"""The test needs a torch that is built with NCCL (code 76)."""


def skip_unsupported(operation: str, *, on: Collection[str]) -> Requirement:
    """The test uses ``operation``, which the backends ``on`` lack (code 86, as torch's table has none of its own)."""

    def check() -> None:
        backend = RankEnvironment.read().backend
        if backend in on:
            skip(SkipCode.GENERIC, f"{backend} has no {operation}")

    return Requirement(check)
