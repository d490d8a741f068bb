"""Versions and options of pytest that do not work with tests on ranks, and why."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Refusal(NamedTuple):
    """Why an option of pytest is rejected."""

    option: str  # pytest's name for its value
    why: str  # the rest of a sentence that begins with the flag
    remedy: str


_NO_TERMINAL: Final = (
    "cannot be used: ranks have no terminal, and the peers of a stopped rank would time out.",
    "Choose a rank to debug in your terminal: `allranks run CELL --suite SUITE --pdb-rank N`.",
)
_NO_TEST: Final = ("cannot be used: it runs no tests, but all would count as passed.", "Use --setup-show.")

REFUSED: Final[Mapping[str, Refusal]] = MappingProxyType(
    {
        "--pdb": Refusal("usepdb", *_NO_TERMINAL),
        "--trace": Refusal("trace", *_NO_TERMINAL),
        "--setup-plan": Refusal("setupplan", *_NO_TEST),
        "--setup-only": Refusal("setuponly", *_NO_TEST),
        "--flake-max-minutes": Refusal(
            "flake_max_minutes",
            "cannot be used: each rank has its own clock, so some ranks would skip a test that others run.",
            "Use only --flake-runs; limits.job in the matrix file ends the job.",
        ),
    }
)
"""By flag."""

_OLDEST: Final = 8
"""The oldest supported major version of pytest: older ones lack ``ExceptionInfo.from_exception``."""


def too_old(version: str) -> str:
    """Why this version of pytest cannot be used; empty if it can."""
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST:
        return f"pytest {version} is too old: install pytest {_OLDEST} or newer (`pip install 'pytest>={_OLDEST}'`)."
    return ""
