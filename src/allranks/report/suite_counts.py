"""The counts that suites declare, compared with their testcases.

The root counts all testcases. A suite may count its own, all below it, or, in Node's form (with ``disabled`` and
``hostname``), one for each element in it. A testcase counts as a failure once, or once for each of its ``failure``
elements; errors and skips likewise. pytest counts a test whose tear-down fails twice, or once although it has two
testcases: the number of tests may differ by that of errors. It does not count a try of a test with a testcase of its
own, which has ``rerun``. Surefire counts the last round of tests alone, or each try: its counts exceed those of
testcases by the number of tries at most.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allranks.report.case_details import CaseDetails
from allranks.report.untrusted import whole_number
from allranks.report.vocabulary import COUNTS, UnknownError, quoted


@dataclass(eq=False)
class Suite:
    """A suite, or the root, and what came in it so far."""

    attributes: Mapping[str, str]
    properties: dict[str, str] = field(default_factory=dict)
    own: Counter[str] = field(default_factory=Counter)  # ``more failures`` has those of a testcase besides its first
    below: Counter[str] = field(default_factory=Counter)  # of all testcases below it
    children: Counter[str] = field(default_factory=Counter)  # its own, and one for each suite in it
    suites: int = 0  # the number of suites in it

    @property
    def name(self) -> str:
        """Its name."""
        return self.attributes.get("name", "")

    def add(self, details: CaseDetails, *, is_disabled: bool) -> None:
        """Count what a testcase of its own states; the number of testcases is set by :attr:`own`."""
        for kind, times in details.elements.items():
            self.own.update({kind: 1, f"more {kind}": times - 1})
        self.own["disabled"] += is_disabled

    def add_suite(self, suite: "Suite") -> None:
        """Count a suite in it that has ended."""
        self.below.update(suite.below)
        self.children["tests"] += 1
        self.children.update(kind for kind in COUNTS[1:] if suite.below[kind])
        self.suites += 1

    def end(self, *, is_root: bool, may_count_tries: bool) -> dict[str, int]:
        """End it: the counts that it declares and does not have.

        The root counts all testcases. If ``may_count_tries``, each try may count, or the last round of tests alone.
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
                # Node 20 counts a suite with failures as a skip, and none that has skips alone.
                least, most = self.own[kind], self.own[kind] + self.suites
            if least <= count <= most:
                return True
        return False


def _count(kind: str, said: str) -> int:
    count = whole_number(said)
    if count is None:
        msg = f"a suite declares {quoted(kind, said)}, which is no count"
        raise UnknownError(msg, "Write counts as digits alone.")
    return count
