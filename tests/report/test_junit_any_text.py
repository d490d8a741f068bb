"""Whatever tests say: the file is well-formed, says it again, and counts what is in it."""

import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from any_suites import FORMS, SUITES, TEXT
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import TEXT_LIMIT, clean_cut, readable
from allranks.report.judged import CellSuite
from allranks.report.junit import JUnitWriter
from allranks.report.junit_case import JUnitForm
from allranks.report.results import RankResult, TestVerdict, Verdict, VerdictKind, VerdictRule


def roots(form: JUnitForm, *suites: CellSuite) -> list[ET.Element]:
    """The documents that are written for suites, parsed."""
    with tempfile.TemporaryDirectory() as folder:
        with JUnitWriter(Path(folder) / "junit.xml", form) as writer:
            for suite in suites:
                writer.add(suite)
        return [ET.parse(path).getroot() for path in writer.files]  # noqa: S314 - our own files


def one(**said: object) -> TestVerdict:
    judged = {name: said.pop(name) for name in ("kind", "message", "text", "reason") if name in said}
    verdict = Verdict(**{"kind": VerdictKind.FAILURE, "rule": VerdictRule.PRIMARY_FAILURE, **judged})
    return TestVerdict(**{"nodeid": "n", "classname": "c", "name": "x", "verdict": verdict, **said})


def case_of(test: TestVerdict) -> ET.Element:
    (root,) = roots(JUnitForm(), CellSuite(cell="c", suite="s", tests=(test,)))
    case = root.find(".//testcase")
    assert case is not None
    return case


@given(st.lists(SUITES, max_size=2), FORMS)
def test_any_suites_make_documents_whose_counts_are_those_of_their_testcases(suites: list[CellSuite], form: JUnitForm):
    documents = roots(form, *suites)
    for element in (each for root in documents for each in root.iter() if each.tag in {"testsuites", "testsuite"}):
        cases = list(element.iter("testcase"))
        found = {"tests": len(cases), "failures": 0, "errors": 0, "skipped": 0}
        for case in cases:
            outcomes = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
            assert len(outcomes) <= 1
            for tag in outcomes:
                found[{"failure": "failures", "error": "errors"}.get(tag, tag)] += 1
        assert {name: int(element.get(name, "")) for name in found} == found
    written = sum(1 for root in documents for _ in root.iter("testcase"))
    assert written == sum(len(suite.tests) for suite in suites)


@given(st.lists(SUITES, max_size=2), FORMS)
def test_every_outcome_has_attributes_and_a_text(suites: list[CellSuite], form: JUnitForm):
    for root in roots(form, *suites):
        for tag in ("failure", "error", "skipped"):
            for element in root.iter(tag):
                assert (element.get("message") or "").strip()
                assert (element.text or "").strip()


@given(TEXT.filter(lambda text: readable(text).strip()))
def test_any_name_comes_back_readable(text: str):
    case = case_of(one(name=text, classname=text))
    assert (case.get("name"), case.get("classname")) == (readable(text), readable(text))


@given(TEXT)
def test_any_node_id_comes_back_readable(text: str):
    said = {item.get("name"): item.get("value") for item in case_of(one(nodeid=text)).iter("property")}
    assert said.get("allranks.nodeid", "") == readable(text)


@given(TEXT.filter(lambda text: readable(text).strip()))
def test_any_message_and_any_text_come_back_readable(text: str):
    failure = case_of(one(message=text, text=text)).find("failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == (readable(text).strip(), readable(text))


@given(TEXT.filter(str.strip))
def test_any_output_comes_back_readable_under_its_rank(text: str):
    rank = RankResult(nodeid="n", classname="c", name="x", rank=3, outcome=Outcome.FAILED, stdout=text, stderr=text)
    case = case_of(one(ranks=(rank,)))
    assert case.findtext("system-out") == case.findtext("system-err") == f"--- rank 3 ---\n{readable(text)}"


def before(verdict: Verdict) -> TestVerdict:
    return TestVerdict(nodeid="n", classname="c", name="x", verdict=verdict, number=1)


@pytest.mark.parametrize("kind", [VerdictKind.FAILURE, VerdictKind.SKIPPED])
def test_a_reason_that_stands_for_an_empty_message_is_readable_too(kind: VerdictKind):
    bad = Verdict(kind=VerdictKind.FAILURE, rule=VerdictRule.JOB, reason="\x00")
    case = case_of(one(kind=kind, reason="\x00", earlier=(before(bad),)))
    outcome = next(child for child in case if child.tag in {"failure", "skipped"})
    assert (outcome.get("message"), outcome.get("type")) == ("#x00", "#x00")


def test_messages_names_and_output_of_50_megabytes_leave_a_small_file():
    huge = "é\x1b[31m<\x00" * 6_000_000
    rank = RankResult(nodeid=huge, classname="c", name="x", rank=0, outcome=Outcome.FAILED, stdout=huge, stderr=huge)
    earlier = (before(Verdict(kind=VerdictKind.ERROR, rule=VerdictRule.JOB, text=huge)),)
    test = one(message=huge, text=huge, name=huge, classname=huge, nodeid=huge, ranks=(rank,), earlier=earlier)
    (root,) = roots(JUnitForm(), CellSuite(cell="c", suite="s", tests=(test,)))
    assert len(ET.tostring(root)) < 3_000_000


def test_a_clean_cut_keeps_both_ends_readable():
    short = clean_cut("\x1b[31mhead" + "x" * 10_000_000 + "tail\x00")
    assert short.startswith("headxxx")
    assert short.endswith("xtail#x00")
    assert len(short) < TEXT_LIMIT + 100
    assert f"{10_000_000 + 14 - TEXT_LIMIT} characters cut" in short
