"""Strategies for judged suites in which every text may be anything."""

from hypothesis import strategies as st

from allranks.protocol.outcomes import Outcome
from allranks.report.judged import CellSuite
from allranks.report.junit_case import JUnitForm
from allranks.report.results import RankResult, TestVerdict, Verdict, VerdictKind, VerdictRule

HOSTILE = (
    "]]>", "<![CDATA[", "</testcase>", "&#10;", "&amp;", "a\r\nb", "\x1b[31mred", "\x00", "\ud800", "\ufffe", "\"'",
    "\t", " ", "",
)  # fmt: skip
TEXT = st.one_of(st.sampled_from(HOSTILE), st.text(alphabet=st.characters(exclude_categories=()), max_size=8))
FORMS = st.builds(
    JUnitForm,
    classname=st.sampled_from(["pytest", "cell"]),
    file_limit=st.sampled_from([2_000, 30_000_000]),
)
BAD = st.sampled_from([VerdictKind.FAILURE, VerdictKind.ERROR])


def verdicts(kinds: st.SearchStrategy[VerdictKind]) -> st.SearchStrategy[Verdict]:
    return st.builds(Verdict, kind=kinds, rule=st.sampled_from(list(VerdictRule)), reason=TEXT, message=TEXT, text=TEXT)


RANKS = st.builds(
    RankResult, nodeid=st.just("n"), classname=st.just("c"), name=st.just("x"), rank=st.integers(0, 3),
    outcome=st.sampled_from(list(Outcome)), stdout=TEXT, stderr=TEXT, duration=st.sampled_from([0.0, 0.25, 1e9, 1e300]),
).map(lambda rank: (rank,))  # fmt: skip
EARLIER = st.builds(
    TestVerdict, nodeid=TEXT, classname=TEXT, name=TEXT, number=st.just(1), verdict=verdicts(BAD), ranks=RANKS,
).map(lambda each: (each,))  # fmt: skip
TESTS = st.builds(
    TestVerdict, nodeid=TEXT, classname=TEXT, name=TEXT, verdict=verdicts(st.sampled_from(list(VerdictKind))),
    ranks=RANKS, earlier=st.one_of(st.just(()), EARLIER),
)  # fmt: skip
SUITES = st.builds(
    CellSuite, cell=TEXT, suite=TEXT, axes=st.dictionaries(TEXT, TEXT, max_size=1), engine=st.just("process"),
    tests=st.lists(TESTS, max_size=3).map(tuple), started=st.sampled_from([None, 1000.0]),
)  # fmt: skip
