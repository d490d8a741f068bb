"""Skips that report, by torch's exit code, a missing requirement.

A :class:`Requirement` can be used in three ways. It is checked only in the rank and only when its test runs, never
while the suite is imported::

    @require_gpus(2)                      # a test, a method, or a class with all of its tests
    def test_peer_copy(device): ...

    @pytest.mark.require_gpus(2)          # the same as a marker: nothing to import, and fit for pytestmark
    def test_peer_copy(device): ...

    def test_checkpoint(backend):
        require_gpus(2).check()           # in the middle of a test; without .check() nothing is checked

The first two skip before any fixture is set up, so the agent can keep the ranks. The requirements themselves are in
``hardware`` and ``software`` of this package; :mod:`allranks.testing` exports them all.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.skip_codes import SkipCode, multi_gpu


def at_least_one(n: object, of: str) -> int:
    """Check ``n``, the number of something that a test needs, and return it.

    Raises:
        TypeError: It is not a whole number, most often because the parentheses of a decorator are missing.
        ValueError: It is less than 1.
    """
    if not isinstance(n, int) or isinstance(n, bool):
        msg = f"how many {of} must be a whole number, and {n!r} is not"
        raise TypeError(msg)
    if n < 1:
        msg = f"a test cannot need {n} {of}: give a number from 1"
        raise ValueError(msg)
    return n


Test = TypeVar("Test", bound=Callable[..., object])

REQUIREMENTS_ATTRIBUTE = "allranks_requirements"
"""The attribute of a decorated test or class with its requirements, in the order of their checks."""


def skip(code: SkipCode, detail: str = "", *, gpus: int | None = None) -> NoReturn:
    """Skip the running test with one of torch's exit codes.

    Args:
        code: The code, whose reason begins the message.
        detail: What is missing here, in words.
        gpus: The number of GPUs that the test needs, if the code does not state it (torch's codes end at 8).

    Raises:
        EnvironmentSkip: Always.
    """
    raise EnvironmentSkip(code, detail, gpus)


def skip_for_gpus(needed: int, present: int, of: str = "") -> NoReturn:
    """Skip the running test, which needs more GPUs (or other accelerators) than are present.

    Raises:
        EnvironmentSkip: Always.
    """
    skip(multi_gpu(needed), f"{present} of {needed}{of}", gpus=needed)


@dataclass(frozen=True)
class Requirement:
    """Something a test needs of its surroundings: a decorator for tests and classes, or :meth:`check` inside a test.

    Args:
        check: Raises :class:`EnvironmentSkip` if the surroundings lack it, else returns.
    """

    check: Callable[[], None]

    def __call__(self, test: Test) -> Test:
        """Skip ``test``, or all tests of a class, if this requirement is not met.

        On a class, it also applies to tests of its subclasses and nested classes. Methods of the class, inherited ones
        included, whose names start with ``test`` are guarded even without our pytest plugin.

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
