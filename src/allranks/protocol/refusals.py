"""Versions and options of pytest that cannot be had where tests run on ranks, with the reasons."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Refusal(NamedTuple):
    """Why an option is refused."""

    option: str  # the name that pytest has for its value
    why: str  # the reason, as the rest of a sentence that begins with the flag
    remedy: str  # what to do instead


_NO_TERMINAL: Final = (
    "cannot be used: ranks have no terminal, and their peers would be stopped meanwhile.",
    "Name a rank, which gets yours: `allranks run CELL --suite SUITE --pdb-rank N`.",
)
_NO_TEST: Final = ("cannot be used: it runs no test, and each would count as passed.", "Use --setup-show.")

REFUSED: Final[Mapping[str, Refusal]] = MappingProxyType(
    {
        "--pdb": Refusal("usepdb", *_NO_TERMINAL),
        "--trace": Refusal("trace", *_NO_TERMINAL),
        "--setup-plan": Refusal("setupplan", *_NO_TEST),
        "--setup-only": Refusal("setuponly", *_NO_TEST),
        "--flake-max-minutes": Refusal(
            "flake_max_minutes",
            "cannot be used: each rank would look at its own clock, and some would skip a test that others run.",
            "Take --flake-runs alone; limits.job in the matrix file ends the job.",
        ),
    }
)
"""By flag."""

_OLDEST: Final = 8
"""Of pytest's major versions: before it, an exception has no report of its own (``ExceptionInfo.from_exception``)."""


def too_old(version: str) -> str:
    """Why this version of pytest cannot be used; empty if it can."""
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST:
        return f"pytest {version} is too old: install pytest {_OLDEST} or newer (`pip install 'pytest>={_OLDEST}'`)."
    return ""
