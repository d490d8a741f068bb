"""Which failures are the same, for all reports: by their leading rank's words, without what varies.

Groups are formed per job while the run streams, so that few of its failures stay in memory, and joined at its end:
the terminal, the summary, annotations and the page show the same groups in the same order.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from allranks.errors import PRECEDENCE, ExitCode
from allranks.protocol.outcomes import numbers
from allranks.protocol.xml_text import cut, first_line, readable
from allranks.report.results import TestVerdict, VerdictKind, VerdictRule, own_failures

if TYPE_CHECKING:
    from allranks.report.axis_correlation import Blame

KEPT_FAILURES: Final = 100
"""Groups of a job; the tests of all others are one group more."""

MOST_GROUPS: Final = 1000
"""Groups of a run; the tests of all others are one group more."""

_MESSAGE: Final = 300
_RANKS_SHOWN: Final = 4
_WORLDS_SHOWN: Final = 4
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


OTHERS: Final = GroupKey("", "", "")
"""The group of what has no group of its own, because there are too many groups."""


class OwnFailures(NamedTuple):
    """The ranks that went wrong by themselves in some tests of one world size."""

    ranks: frozenset[int]
    are_same: bool = True  # True if these are the ranks of each of the tests


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A group of bad verdicts that are the same; its first one, and what is known of the others."""

    place: str  # ``<cell> / <suite>``
    nodeid: str
    kind: VerdictKind
    message: str  # first line of the verdict's message, cut
    said: str = ""  # what the leading rank said, in one line
    reason: str = ""  # the verdict's, in one or two words
    is_of_job: bool = False  # True if this is an error of the job, and not of one of its tests
    code: ExitCode = ExitCode.TESTS_FAILED  # the run's exit code if there were only this verdict
    alike: int = 0  # the number of further tests in its group
    key: GroupKey | None = None  # the group; None for one of its own
    cells: tuple[str, ...] = ()  # the cells that have tests of the group
    packs: tuple[str, ...] = ()  # the packs of a plan whose jobs went wrong so, and not only their tests
    ranks: Mapping[int, OwnFailures] = field(default_factory=dict)  # by world size
    blame: "Blame | None" = None  # the predicate that holds exactly where the group's tests fail; None if unknown
    traceback: tuple[str, ...] = ()  # lines of the leading rank's traceback or stack
    file: str = ""  # the test's own file
    line: int | None = None  # the line of that which the traceback leads through last
    again: str = ""  # the command that runs the test again in this cell; empty if there is none

    @property
    def spread(self) -> str:
        """How often it is there, in which packs and on which ranks; empty for nothing to add."""
        count = 1 + self.alike
        cells = f" in {len(self.cells)} cells" if len(self.cells) > 1 else ""
        said = [f"{count} tests{cells}"] if count > 1 else []
        if self.packs:
            more = f" and {len(self.packs) - _PACKS_SHOWN} more" if len(self.packs) > _PACKS_SHOWN else ""
            said.append(f"pack{'s' * (len(self.packs) > 1)} {', '.join(self.packs[:_PACKS_SHOWN])}{more}")
        if count > 1 or any(len(each.ranks) > 1 for each in self.ranks.values()):
            said += whose(self.ranks)
        return "; ".join(said)

    @property
    def extent(self) -> str:
        """Its spread, and the axis to blame; empty for nothing to add."""
        blamed = f"fails exactly where {readable(self.blame.predicate)}" if self.blame else ""
        return "; ".join(filter(None, (self.spread, blamed)))


def whose(ranks: Mapping[int, OwnFailures]) -> list[str]:
    """For each world size ``rank 31``, ``all 64 ranks``, ``8 of 64 ranks: 3, 11, 19, 27, …``.

    The world size is named where the ranks of several world sizes differ, and ranks that differ from test to test are
    not counted: ``rank 1 of 2``, ``different ranks of 4: 0-2``.
    """
    is_one = len(set(ranks.values())) == 1
    said = dict.fromkeys(_whose(each, world, is_one=is_one) for world, each in sorted(ranks.items()))
    return [*list(said)[:_WORLDS_SHOWN], *["…"] * (len(said) > _WORLDS_SHOWN)]


def _whose(of: OwnFailures, world: int, *, is_one: bool) -> str:
    ordered = sorted(of.ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}" if is_one else f"rank {ordered[0]} of {world}"
    if of.are_same and len(ordered) >= world:
        return f"all {len(ordered)} ranks"
    runs = numbers(ordered).split(", ")
    more = ", …" if len(runs) > _RANKS_SHOWN else ""
    who = f"{len(ordered)} of {world} ranks" if of.are_same else f"different ranks of {world}"
    return f"{who}: {', '.join(runs[:_RANKS_SHOWN])}{more}"


def ranks_of(tests: Iterable[TestVerdict]) -> Mapping[int, OwnFailures]:
    """The ranks of each world size that went wrong by themselves, as :func:`own_failures` finds them."""
    return _together((len(test.ranks), OwnFailures(own)) for test in tests if (own := own_failures(test.ranks)))


def _together(of_worlds: Iterable[tuple[int, OwnFailures]]) -> Mapping[int, OwnFailures]:
    found: dict[int, OwnFailures] = {}
    for world, each in of_worlds:
        before = found.get(world, each)
        are_same = before.are_same and each.are_same and before.ranks == each.ranks
        found[world] = OwnFailures(before.ranks | each.ranks, are_same)
    return found


def grouped(of_jobs: Iterable[Sequence[Failure]], blames: "Mapping[GroupKey, Blame]") -> list[Failure]:
    """The groups of a run, from those of its jobs: errors of whole jobs first, then the most frequent.

    Among these errors causes come first, by the precedence of their exit codes: a job without results (3) often is a
    consequence of what another machine's infrastructure (4) did.
    """
    groups: dict[object, list[Failure]] = {}
    for failure in chain.from_iterable(of_jobs):
        groups.setdefault(failure.key or object(), []).append(failure)
    others = groups.pop(OTHERS, [])
    joined = [_joined(group, blames) for group in groups.values()]
    joined.sort(key=lambda failure: (_order(failure.code, is_of_job=failure.is_of_job), -failure.alike))
    shown, others = joined[:MOST_GROUPS], [*joined[MOST_GROUPS:], *others]
    return [*shown, replace(_joined(others, {}), key=OTHERS, message=_OTHERS, said=_OTHERS)] if others else shown


_OTHERS: Final = "Other failures, which have more messages than a report separates"


def _order(code: ExitCode, *, is_of_job: bool) -> int:
    """The place of a failure among others, from 0: errors of whole jobs by their exit codes, then those of tests."""
    return PRECEDENCE.index(code) if is_of_job else len(PRECEDENCE)


def _joined(group: Sequence[Failure], blames: "Mapping[GroupKey, Blame]") -> Failure:
    first = group[0]
    return replace(
        first,
        alike=sum(1 + failure.alike for failure in group) - 1,
        cells=tuple(dict.fromkeys(cell for failure in group for cell in failure.cells)),
        packs=tuple(dict.fromkeys(pack for failure in group for pack in failure.packs)),
        ranks=_together(chain.from_iterable(failure.ranks.items() for failure in group)),
        blame=blames.get(first.key) if first.key else None,
    )


def groups_of(tests: Iterable[TestVerdict]) -> dict[GroupKey, list[TestVerdict]]:
    """The bad tests of a job by group: errors of the job itself first, then the most frequent."""
    groups: dict[GroupKey, list[TestVerdict]] = {}
    for test in tests:
        if test.verdict.is_bad:
            groups.setdefault(key_of(test), []).append(test)
    ordered = sorted(
        groups.items(), key=lambda group: (group[1][0].verdict.rule is not VerdictRule.JOB, -len(group[1]))
    )
    others = list(chain.from_iterable(each for _, each in ordered[KEPT_FAILURES:]))
    return dict(ordered[:KEPT_FAILURES]) | ({OTHERS: others} if others else {})
