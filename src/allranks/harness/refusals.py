"""Options of pytest that cannot be had where each test runs on several ranks, each with the reason."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_NO_TERMINAL: Final = (
    "cannot be used: ranks have no terminal, and their peers would be stopped meanwhile. "
    "A rank that hangs leaves its stacks in rank-N.stacks.txt."
)
_NO_TEST: Final = "cannot be used: it runs no test, and each would count as passed. Use --setup-show."

REFUSED: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "--pdb": ("usepdb", _NO_TERMINAL),
        "--trace": ("trace", _NO_TERMINAL),
        "--setup-plan": ("setupplan", _NO_TEST),
        "--setup-only": ("setuponly", _NO_TEST),
    }
)
"""By flag: the name that pytest has for its value, and why it is refused."""
