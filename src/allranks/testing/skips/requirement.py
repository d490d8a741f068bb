"""Skips that say, by torch's exit code, what the surroundings lack.

A :class:`Requirement` can be used in three ways, and is looked at only in the rank and only when its test runs, never
while the suite is imported::

    @require_gpus(2)                      # a test, a method, or a class with all of its tests
    def test_peer_copy(device): ...

    @pytest.mark.require_gpus(2)          # the same as a marker: nothing to import, and fit for pytestmark
    def test_peer_copy(device): ...

    def test_checkpoint(backend):
        require_gpus(2).check()           # in the middle of a test; without .check() nothing is looked at

Of these, the first two skip before any fixture is made, so the agent can keep the ranks. The requirements themselves
are in ``gpu_skips``, ``world_skips``, ``backend_skips`` and ``platform_skips``; :mod:`allranks.testing` has them all.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import pytest

from allranks.harness.outcome import SkipKind
from allranks.testing.skips import skipcodes
from allranks.testing.skips.skipcodes import SkipCode

Test = TypeVar("Test", bound=Callable[..., object])

REQUIREMENTS_ATTRIBUTE = "allranks_requirements"
"""Where a decorated test or class keeps its requirements, in the order in which they are looked at."""


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
    """Something a test needs of its surroundings: a decorator for tests and classes, or :meth:`check` inside a test.

    Args:
        check: Raises :class:`EnvironmentSkip` where the surroundings lack it, else returns.
    """

    check: Callable[[], None]

    def __call__(self, test: Test) -> Test:
        """Skip ``test``, or all tests of a class, where this requirement is not met.

        On a class it holds for the tests of its subclasses and of classes within it too; those that the class itself
        has, or inherits, under a name that starts with ``test`` are guarded even without our pytest plugin.

        Raises:
            TypeError: ``test`` is neither a function nor a class.
        """
        if isinstance(test, type):
            for name, function in inspect.getmembers_static(test, inspect.isfunction):
                if name.startswith("test"):
                    setattr(test, name, self._guard(function))
            setattr(test, REQUIREMENTS_ATTRIBUTE, (self, *requirements_of(test)))
            return test
        if not inspect.isroutine(test):
            msg = f"a requirement decorates a test function or a class, and {test!r} is neither"
            raise TypeError(msg)
        return self._guard(test)

    def _guard(self, test: Test) -> Test:
        @functools.wraps(test)
        def guarded(*args: object, **kwargs: object) -> object:
            self.check()
            return test(*args, **kwargs)

        setattr(guarded, REQUIREMENTS_ATTRIBUTE, (self, *requirements_of(test)))
        return guarded  # type: ignore[return-value]


def requirements_of(test: object) -> tuple[Requirement, ...]:
    """The requirements that a test or a class was decorated with, outermost first."""
    found: tuple[Requirement, ...] = getattr(test, REQUIREMENTS_ATTRIBUTE, ())
    return found
