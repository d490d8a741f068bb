"""Which failures are the same, for all reports: by their leading rank's words, without what varies.

Groups are formed per job while the run streams, so that few of its failures stay in memory, and joined at its end.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from allranks.errors import PRECEDENCE, ExitCode
from allranks.protocol.outcomes import Outcome, numbers
from allranks.protocol.xml_text import cut, first_line, readable
from allranks.report.results import TestVerdict, VerdictKind

_MESSAGE: Final = 300
_RANKS_SHOWN: Final = 4
_PACKS_SHOWN: Final = 4

_KEPT: Final = r"(?:signal|code|status|errno|error|version|SIG[A-Z]+)[ =:(]{0,2}"
_NUMBER: Final = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_VARYING: Final = re.compile(
    rf"""
    (?P<kept>\b{_KEPT}\d+)                         # a number that names the kind of an end
    | (?P<scratch>/(?:tmp|var/tmp|dev/shm)/[^\s'":,)]+)
    | (?P<path>(?:/[\w.@+~-]+)+(?=/[\w.@+~-]))     # the folder of a file
    | 0x[0-9a-f]+                                  # addresses
    | (?<![\w.])[0-9a-f]*\d[0-9a-f]*(?:-[0-9a-f]+){{2,}}\b   # UUIDs
    | \b(?:ranks?\s?)?{_NUMBER}(?:(?:,\s?|-|\sand\s){_NUMBER})*(?:\s?(?:ms|s|seconds|is|are))?\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


class GroupKey(NamedTuple):
    """What failures of one group have in common."""

    kind: str
    reason: str
    signature: str


def key_of(test: TestVerdict) -> GroupKey:
    """The group of a bad test."""
    return GroupKey(test.verdict.kind.value, signature(test.verdict.reason), signature(message_of(test)))


def message_of(test: TestVerdict) -> str:
    """The message of a bad test's leading rank, in one line; the verdict's if no rank leads."""
    verdict, lead = test.verdict, test.lead
    said = first_line(readable(lead.message)) or first_line(readable(lead.text)) if lead else ""
    return cut(said or first_line(readable(verdict.message)) or verdict.reason, _MESSAGE).replace("\n", " ")


def signature(message: str) -> str:
    """``message`` without what varies between runs, ranks and parameters: numbers, addresses, ranks and folders."""
    return _VARYING.sub(lambda found: found["kept"] or ("" if found["path"] else "*"), message)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A bad verdict, and how many others are alike."""

    place: str  # ``<cell> / <suite>``
    nodeid: str
    kind: VerdictKind
    message: str  # first line of the verdict's message, cut
    is_of_job: bool = False  # True if this is an error of the job, and not of one of its tests
    code: ExitCode = ExitCode.TESTS_FAILED  # the run's exit code if there were only this verdict
    alike: int = 0  # the number of further tests in its group
    key: GroupKey | None = None  # the group; None for one of its own
    cells: tuple[str, ...] = ()  # the cells that have tests of the group
    packs: tuple[str, ...] = ()  # the packs of a plan whose jobs went wrong so, and not only their tests
    ranks: frozenset[int] = frozenset()  # the ranks that went wrong by themselves in any of these
    world: int = 0  # the largest number of ranks that any of these had
    blame: str = ""  # the predicate that holds exactly where the group's tests fail; empty if none is known
    traceback: tuple[str, ...] = ()  # lines of the leading rank's traceback or stack
    file: str = ""  # the test's own file
    line: int | None = None  # the line of that which the traceback leads through last
    again: str = ""  # the command that runs the test again in this cell; empty if there is none

    @property
    def extent(self) -> str:
        """How often it is there, in which packs, on which ranks, and the axis to blame; empty for nothing to add."""
        count = 1 + self.alike
        cells = f" in {len(self.cells)} cells" if len(self.cells) > 1 else ""
        said = [f"{count} tests{cells}"] if count > 1 else []
        if self.packs:
            more = f" and {len(self.packs) - _PACKS_SHOWN} more" if len(self.packs) > _PACKS_SHOWN else ""
            said.append(f"pack{'s' * (len(self.packs) > 1)} {', '.join(self.packs[:_PACKS_SHOWN])}{more}")
        if self.ranks and (count > 1 or len(self.ranks) > 1):
            said.append(whose(self.ranks, self.world))
        if self.blame:
            said.append(f"fails exactly where {self.blame}")
        return "; ".join(said)


def whose(ranks: Iterable[int], world: int) -> str:
    """``rank 31``, ``all 64 ranks``, ``8 of 64 ranks: 3, 11, 19, 27, …``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) >= world:
        return f"all {len(ordered)} ranks"
    runs = numbers(ordered).split(", ")
    more = ", …" if len(runs) > _RANKS_SHOWN else ""
    return f"{len(ordered)} of {world} ranks: {', '.join(runs[:_RANKS_SHOWN])}{more}"


def ranks_of(tests: Iterable[TestVerdict]) -> frozenset[int]:
    """The ranks that went wrong by themselves; those that are missing if no other did."""
    found = [rank for test in tests for rank in test.ranks if rank.outcome.is_bad]
    own = [each for each in found if each.outcome not in _OF_OTHERS and not each.consequence]
    return frozenset(each.rank for each in own or [each for each in found if each.outcome is Outcome.MISSING])


_OF_OTHERS: Final = frozenset({Outcome.ABORTED, Outcome.MISSING})


def grouped(of_jobs: Iterable[Sequence[Failure]], blames: Mapping[GroupKey, str]) -> list[Failure]:
    """The groups of a run, from those of its jobs: errors of whole jobs first, then the most frequent.

    Among these errors causes come first, by the precedence of their exit codes: a job without results (3) often is a
    consequence of what another machine's infrastructure (4) did.
    """
    groups: dict[object, list[Failure]] = {}
    for failures in of_jobs:
        for failure in failures:
            groups.setdefault(failure.key or object(), []).append(failure)
    joined = [_joined(group, blames) for group in groups.values()]
    return sorted(joined, key=lambda failure: (order_of(failure.code, is_of_job=failure.is_of_job), -failure.alike))


def order_of(code: ExitCode, *, is_of_job: bool) -> int:
    """The place of a failure among others, from 0: errors of whole jobs by their exit codes, then those of tests."""
    return PRECEDENCE.index(code) if is_of_job else len(PRECEDENCE)


def _joined(group: Sequence[Failure], blames: Mapping[GroupKey, str]) -> Failure:
    first = group[0]
    return replace(
        first,
        alike=sum(1 + failure.alike for failure in group) - 1,
        cells=tuple(dict.fromkeys(cell for failure in group for cell in failure.cells)),
        packs=tuple(dict.fromkeys(pack for failure in group for pack in failure.packs)),
        ranks=frozenset().union(*(failure.ranks for failure in group)),
        world=max(failure.world for failure in group),
        blame=blames.get(first.key, "") if first.key else "",
    )


def groups_of(tests: Iterable[TestVerdict]) -> Iterator[tuple[GroupKey, list[TestVerdict]]]:
    """The bad tests of a job by group, in order of appearance."""
    groups: dict[GroupKey, list[TestVerdict]] = {}
    for test in tests:
        if test.verdict.is_bad:
            groups.setdefault(key_of(test), []).append(test)
    yield from groups.items()
