"""Failures that are the same, together: over ranks, over tests and over cells."""

import re
from dataclasses import dataclass
from typing import Final

from allranks.report.model import TestVerdict, VerdictKind
from allranks.report.xml_text import cut, first_line, readable

MOST_GROUPS: Final = 2000
"""Different failures that are told apart; the rest are one group more, so that memory has a bound."""

_MESSAGE: Final = 300
_OTHERS: Final = "Other messages: there are more different ones than this page tells apart"

_VARYING: Final = re.compile(
    r"""
    0x[0-9a-f]+                                # addresses
    | \b[Rr]ank\s?\d+ | \bpid[ =]?\d+          # which rank, which process
    | (?<=:)\d{4,5}\b                          # ports
    | \d+(?:\.\d+)?\s?(?:ms|s|seconds)\b       # how long it took
    | /tmp/[^\s'":,]+                          # scratch folders
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Failures that say the same.

    Attributes:
        message: The words of the first of them.
        reason: As a verdict's.
    """

    message: str
    kind: VerdictKind
    reason: str


class Groups:
    """Numbers the different failures of a run, in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._groups: list[Group] = []

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups so far, by their number."""
        return tuple(self._groups)

    def number_of(self, test: TestVerdict, message: str) -> int:
        """The group of a bad test that says ``message``."""
        kind, reason = test.verdict.kind, test.verdict.reason
        key = (kind.value, reason, signature(message))
        if key not in self._numbers and len(self._groups) >= MOST_GROUPS:
            key, message, kind, reason = ("", "", ""), _OTHERS, VerdictKind.ERROR, ""
        if key not in self._numbers:
            self._numbers[key] = len(self._groups)
            self._groups.append(Group(message=message, kind=kind, reason=reason))
        return self._numbers[key]


def message_of(test: TestVerdict) -> str:
    """What the rank that leads a bad test says, in one line; what the verdict says where none leads."""
    verdict = test.verdict
    lead = next((rank for rank in test.ranks if rank.rank == verdict.leading), None)
    said = first_line(readable(lead.message)) or first_line(readable(lead.text)) if lead else ""
    return cut(said or first_line(readable(verdict.message)) or verdict.reason, _MESSAGE).replace("\n", " ")


def signature(message: str) -> str:
    """``message`` without what differs from run to run and from rank to rank: addresses, ports, pids, rank numbers."""
    return _VARYING.sub("*", message)
