"""What a test needs of the rest: the operating system, installed packages, and what its author alone knows."""

import importlib
import sys
from collections.abc import Callable

from allranks.testing.skips.requirement import Requirement, skip
from allranks.testing.skips.skipcodes import SkipCode


def _check_not_windows() -> None:
    if sys.platform == "win32":
        skip(SkipCode.GENERIC, "this test does not apply to Windows")


skip_if_windows = Requirement(_check_not_windows)
"""The test does not apply to Windows (code 86)."""


def require_imports(*names: str) -> Requirement:
    """The test imports these modules, and each must be installed (code 88).

    A module that is there and cannot be imported for another reason is an error of the test, and no skip.

    Raises:
        TypeError: No name was given, or one is no string.
    """
    if not names or not all(isinstance(name, str) for name in names):
        msg = f"give names of modules, such as 'transformers', not {names!r}"
        raise TypeError(msg)

    def check() -> None:
        for name in names:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                skip(SkipCode.MISSING_IMPORT, f"there is no module {error.name or name}")

    return Requirement(check)


def skip_because(reason: str) -> Requirement:
    """The surroundings of this test lack what ``reason`` says (code 86).

    Raises:
        TypeError: There are no words of a reason.
    """
    return skip_when(lambda: True, reason)


def skip_when(condition: Callable[[], object], reason: str) -> Requirement:
    """The test is skipped where ``condition()``, called in each rank when the test runs, is true (code 86).

    Args:
        condition: To be answered alike by all ranks: one that runs alone waits for the others in vain.
        reason: What the surroundings lack then, in words.

    Raises:
        TypeError: The condition cannot be called, or there are no words of a reason.
    """
    if not callable(condition):
        msg = f"the condition is called when the test runs, so give a function, such as lambda: ..., not {condition!r}"
        raise TypeError(msg)
    if not isinstance(reason, str) or not reason.strip():
        msg = f"give the reason in words, not {reason!r}"
        raise TypeError(msg)

    def check() -> None:
        if condition():
            skip(SkipCode.GENERIC, reason)

    return Requirement(check)
