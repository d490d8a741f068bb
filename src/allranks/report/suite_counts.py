"""Compares the counts that suites declare with their testcases.

Writers count differently. The root counts all testcases. A suite counts its own testcases, or all testcases below it;
in Node's form (with ``disabled`` and ``hostname``), it counts its child elements. A testcase counts as one failure, or
as one for each of its ``failure`` elements; the same applies to errors and skips. pytest counts a test with a failed
tear-down twice, or once although it has two testcases, so the number of tests may differ by the number of errors. It
does not count a try that has its own testcase (with ``rerun``). Surefire counts the last round of tests, which is fewer
than the testcases, or each try, which is more by up to the number of tries.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allranks.report.case_details import CaseDetails
from allranks.report.untrusted import whole_number
from allranks.report.vocabulary import COUNTS, UnknownError, quoted


@dataclass(eq=False)
class Suite:
    """A suite, or the root, with the counts so far."""

    attributes: Mapping[str, str]
    properties: dict[str, str] = field(default_factory=dict)
    own: Counter[str] = field(default_factory=Counter)  # ``more failures``: beyond the first of each testcase
    below: Counter[str] = field(default_factory=Counter)  # of child suites; at the end, of all testcases below it
    children: Counter[str] = field(default_factory=Counter)  # at the end, of child elements: a suite is one
    suites: int = 0  # the number of child suites

    @property
    def name(self) -> str:
        return self.attributes.get("name", "")

    def add(self, details: CaseDetails, *, is_disabled: bool) -> None:
        """Count the elements of one of its own testcases; the caller counts the testcase itself in :attr:`own`."""
        for kind, times in details.elements.items():
            self.own.update({kind: 1, f"more {kind}": times - 1})
        self.own["disabled"] += is_disabled

    def add_suite(self, suite: "Suite") -> None:
        """Count a child suite that has ended."""
        self.below.update(suite.below)
        self.children["tests"] += 1
        self.children.update(kind for kind in COUNTS[1:] if suite.below[kind])
        self.suites += 1

    def end(self, *, is_root: bool, may_count_tries: bool) -> dict[str, int]:
        """Finish the suite, and return the declared counts that are wrong.

        If ``may_count_tries``, each try may be counted, or only the last round of tests.
        """
        self.below.update(self.own)
        self.children.update(self.own)
        declared = {kind: _count(kind, self.attributes[kind]) for kind in COUNTS if kind in self.attributes}
        is_of_node = not is_root and {"disabled", "hostname"} <= self.attributes.keys()
        ways = [self.below] if is_root else [self.own, self.below, *([self.children] if is_of_node else [])]
        wrong = {kind: count for kind, count in declared.items() if not self._may_be(kind, count, ways)}
        if may_count_tries and self.below["tries"]:
            has = self.below
            return {kind: n for kind, n in wrong.items() if n > has[kind] + has[f"more {kind}"] + has["tries"]}
        return wrong

    def _may_be(self, kind: str, count: int, ways: Sequence[Counter[str]]) -> bool:
        for found in ways:
            least, most = found[kind], found[kind] + found[f"more {kind}"]
            if kind == "tests":
                least, most = least - found["errors"] - found["reruns"], most + found["errors"]
            elif kind == "skipped" and found is self.children:
                # Node 20 counts a suite with failures as a skip, but not a suite that has only skips.
                least, most = self.own[kind], self.own[kind] + self.suites
            if least <= count <= most:
                return True
        return False


def _count(kind: str, value: str) -> int:
    count = whole_number(value)
    if count is None:
        msg = f"a suite declares {quoted(kind, value)}, which is not a count"
        raise UnknownError(msg, "Write counts with digits only.")
    return count
