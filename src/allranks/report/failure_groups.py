"""Groups failures for all reports: by the message of the primary failure, without the parts that vary.

The failures of each job are grouped when the job is judged, so that few of them stay in memory, and the groups of all
jobs are joined at the end. The terminal, the summary, annotations and the page show the same groups in the same order.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from allranks.errors import PRECEDENCE, ExitCode
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import numbers
from allranks.protocol.xml_text import cut, first_line, readable
from allranks.report.results import TestVerdict, VerdictKind, VerdictRule, own_failures

if TYPE_CHECKING:
    from allranks.report.axis_correlation import Blame

KEPT_FAILURES: Final = 100
"""The most groups of a job; all other failures form one more group."""

MOST_GROUPS: Final = 1000
"""The most groups of a run; all other failures form one more group."""

_MESSAGE: Final = 300
_RANKS_SHOWN: Final = 4
_WORLDS_SHOWN: Final = 4
_FUNCTIONS: Final = 3
"""Test functions of a group that are shown, with the first failure's own."""
_BATCHES_SHOWN: Final = 4

_KEPT: Final = r"(?:signal|code|status|errno|error|version|SIG[A-Z]+)[ =:(]{0,2}"
_NUMBER: Final = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_VARYING: Final = re.compile(
    rf"""
    (?P<kept>\b{_KEPT}\d+)                         # a number that identifies the failure
    | (?P<scratch>/(?:tmp|var/tmp|dev/shm)/[^\s'":,)]+)
    | (?P<path>(?:/[\w.@+~-]+)+(?=/[\w.@+~-]))     # the folder of a file
    | 0x[0-9a-f]+                                  # addresses
    | (?<![\w.])[0-9a-f]*\d[0-9a-f]*(?:-[0-9a-f]+){{2,}}\b   # UUIDs
    | \b(?:ranks?\s?)?{_NUMBER}(?:(?:,\s?|-|\sand\s){_NUMBER})*(?:\s?(?:ms|s|seconds|is|are))?\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


class GroupKey(NamedTuple):
    """What the failures of a group have in common."""

    kind: str
    reason: str
    signature: str


def key_of(test: TestVerdict) -> GroupKey:
    """The group of a failed test."""
    return GroupKey(test.verdict.kind.value, signature(test.verdict.reason), signature(message_of(test)))


def message_of(test: TestVerdict) -> str:
    """The message of the primary failure in one line, or else that of the verdict."""
    verdict, primary = test.verdict, test.primary
    message = first_line(readable(primary.message)) or first_line(readable(primary.text)) if primary else ""
    return cut(message or first_line(readable(verdict.message)) or verdict.reason, _MESSAGE).replace("\n", " ")


def signature(message: str) -> str:
    """``message`` without what varies between runs, ranks and parameters: numbers, addresses, ranks and folders."""
    return _VARYING.sub(lambda found: found["kept"] or ("" if found["path"] else "*"), message)


OTHERS: Final = GroupKey("", "", "")
"""The group of all failures beyond the largest number of groups."""


class OwnFailures(NamedTuple):
    """The ranks that failed on their own in some tests of one world size."""

    ranks: frozenset[int]
    are_same: bool = True  # True if exactly these ranks failed in each of the tests


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A group of equal failures: its first failure, and a summary of the others."""

    job: str  # ``<cell> / <suite>``
    nodeid: str
    kind: VerdictKind
    message: str  # the first line of the verdict's message
    rank_message: str = ""  # the first line of the primary failure's own message
    reason: str = ""  # of the verdict: one or two words
    is_of_job: bool = False  # True for an error of the job, as opposed to one of its tests
    code: ExitCode = ExitCode.TESTS_FAILED  # the exit code that this failure demands of the run
    more: int = 0  # the number of other tests in the group
    functions: tuple[str, ...] = ()  # the first test functions of the group, as node ids without parameters
    key: GroupKey | None = None  # None for a failure that is never grouped
    cells: tuple[str, ...] = ()  # the cells of the group's tests
    batches: tuple[str, ...] = ()  # the batches, in a plan for several machines, of the jobs with this error
    ranks: Mapping[int, OwnFailures] = field(default_factory=dict)  # by world size
    blame: "Blame | None" = None  # the predicate that holds exactly where the group's tests fail; None if unknown
    traceback: tuple[str, ...] = ()  # lines of the primary failure's traceback or stack
    file: str = ""  # the test's own file
    line: int | None = None  # the line of the innermost frame in that file
    rerun_command: str = ""  # the command that reruns the test in this cell; empty if there is none

    @property
    def spread(self) -> str:
        """The number of tests and cells, and the ranks that failed; empty if the failure occurred once on one rank."""
        count = 1 + self.more
        cells = f" in {len(self.cells)} cells" if len(self.cells) > 1 else ""
        parts = [f"{count} tests{cells}"] if count > 1 else []
        if self.batches:
            more = f" and {len(self.batches) - _BATCHES_SHOWN} more" if len(self.batches) > _BATCHES_SHOWN else ""
            parts.append(f"batch{'es' * (len(self.batches) > 1)} {', '.join(self.batches[:_BATCHES_SHOWN])}{more}")
        if count > 1 or any(len(failures.ranks) > 1 for failures in self.ranks.values()):
            parts += failed_ranks(self.ranks)
        return "; ".join(parts)

    @property
    def impact(self) -> str:
        """The spread, other functions, and the axis that the failure depends on; empty if nothing adds anything."""
        others = [*map(readable, self.functions[1:_FUNCTIONS]), *["…"] * (len(self.functions) > _FUNCTIONS)]
        also = f"also {', '.join(others)}" if others else ""
        blamed = f"fails exactly where {readable(self.blame.predicate)}" if self.blame else ""
        return "; ".join(filter(None, (self.spread, also, blamed)))


def failed_ranks(ranks: Mapping[int, OwnFailures]) -> list[str]:
    """For each world size ``rank 31``, ``all 64 ranks`` or ``8 of 64 ranks: 3, 11, 19, 27, …``.

    The world size is added if the ranks differ between world sizes (``rank 1 of 2``). Ranks that differ between tests
    are not counted (``different ranks of 4: 0-2``).
    """
    is_one = len(set(ranks.values())) == 1
    texts = dict.fromkeys(_ranks_text(failures, size, is_one=is_one) for size, failures in sorted(ranks.items()))
    return [*list(texts)[:_WORLDS_SHOWN], *["…"] * (len(texts) > _WORLDS_SHOWN)]


def _ranks_text(failures: OwnFailures, world_size: int, *, is_one: bool) -> str:
    ordered = sorted(failures.ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}" if is_one else f"rank {ordered[0]} of {world_size}"
    if failures.are_same and len(ordered) >= world_size:
        return f"all {len(ordered)} ranks"
    runs = numbers(ordered).split(", ")
    more = ", …" if len(runs) > _RANKS_SHOWN else ""
    who = f"{len(ordered)} of {world_size} ranks" if failures.are_same else f"different ranks of {world_size}"
    return f"{who}: {', '.join(runs[:_RANKS_SHOWN])}{more}"


def ranks_of(tests: Iterable[TestVerdict]) -> Mapping[int, OwnFailures]:
    """The ranks that failed on their own, by world size."""
    return _merged((len(test.ranks), OwnFailures(own)) for test in tests if (own := own_failures(test.ranks)))


def _merged(by_world_size: Iterable[tuple[int, OwnFailures]]) -> Mapping[int, OwnFailures]:
    merged: dict[int, OwnFailures] = {}
    for size, failures in by_world_size:
        before = merged.get(size, failures)
        are_same = before.are_same and failures.are_same and before.ranks == failures.ranks
        merged[size] = OwnFailures(before.ranks | failures.ranks, are_same)
    return merged


def grouped(of_jobs: Iterable[Sequence[Failure]], blames: "Mapping[GroupKey, Blame]") -> list[Failure]:
    """Join the groups of all jobs: errors of whole jobs first, then by size; interrupted jobs come last.

    Errors of jobs are ordered by the precedence of their exit codes, so that causes come first: a job without results
    (3) is often a consequence of an infrastructure failure (4) on another machine.
    """
    groups = by_key((failure.key or object(), failure) for failure in chain.from_iterable(of_jobs))
    others = groups.pop(OTHERS, [])
    joined = [_joined(group, blames) for group in groups.values()]
    joined.sort(key=lambda failure: (_order(failure), -failure.more))
    shown, others = joined[:MOST_GROUPS], [*joined[MOST_GROUPS:], *others]
    if not others:
        return shown
    return [*shown, replace(_joined(others, {}), key=OTHERS, message=_OTHERS, rank_message=_OTHERS)]


_OTHERS: Final = "Other failures: this report does not list more distinct messages"


def _order(failure: Failure) -> int:
    if not failure.is_of_job:
        return len(PRECEDENCE)
    return len(PRECEDENCE) + 1 if failure.code is ExitCode.INTERRUPTED else PRECEDENCE.index(failure.code)


def _joined(group: Sequence[Failure], blames: "Mapping[GroupKey, Blame]") -> Failure:
    first = group[0]
    return replace(
        first,
        more=sum(1 + failure.more for failure in group) - 1,
        functions=_some(function for failure in group for function in failure.functions),
        cells=tuple(dict.fromkeys(cell for failure in group for cell in failure.cells)),
        batches=tuple(dict.fromkeys(batch for failure in group for batch in failure.batches)),
        ranks=_merged(chain.from_iterable(failure.ranks.items() for failure in group)),
        blame=blames.get(first.key) if first.key else None,
    )


def functions_of(tests: Iterable[TestVerdict]) -> tuple[str, ...]:
    """The node ids of the first test functions, without parameters."""
    return _some(test.nodeid.partition("[")[0] for test in tests)


def _some(functions: Iterable[str]) -> tuple[str, ...]:
    """The functions that are shown, and one more if there are more."""
    return tuple(islice(dict.fromkeys(functions), _FUNCTIONS + 1))


def groups_of(tests: Iterable[TestVerdict]) -> dict[GroupKey, list[TestVerdict]]:
    """The failed tests of a job by group: errors of the job itself first, then by size."""
    groups = by_key((key_of(test), test) for test in tests if test.verdict.is_bad)
    ordered = sorted(
        groups.items(), key=lambda group: (group[1][0].verdict.rule is not VerdictRule.JOB, -len(group[1]))
    )
    others = list(chain.from_iterable(group for _, group in ordered[KEPT_FAILURES:]))
    return dict(ordered[:KEPT_FAILURES]) | ({OTHERS: others} if others else {})
