"""Earlier attempts in the report, as Surefire's schema has them."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from allranks.protocol.outcomes import Outcome
from allranks.report.judge.rules import VerdictPolicy, verdict
from allranks.report.judged import CellSuite
from allranks.report.junit import JUnitWriter
from allranks.report.junit_case import RETRIES
from allranks.report.results import RankResult, TestVerdict


def rank(outcome: Outcome, number: int = 0, **said: str) -> RankResult:
    return RankResult(nodeid="t.py::a", classname="t", name="a", rank=number, outcome=outcome, **said)


def attempt(number: int, *ranks: RankResult) -> TestVerdict:
    judged = verdict(ranks, VerdictPolicy())
    return TestVerdict(nodeid="t", classname="", name="t", verdict=judged, ranks=ranks, number=number)


def written(tmp_path: Path, now: Outcome, *earlier: TestVerdict) -> ET.Element:
    ranks = (rank(now, message="now"),)
    test = TestVerdict(
        nodeid="t.py::a", classname="t", name="a", verdict=verdict(ranks, VerdictPolicy()), ranks=ranks, earlier=earlier
    )
    path = tmp_path / "junit.xml"
    with JUnitWriter(path) as writer:
        writer.add(CellSuite(cell="c", suite="s", tests=(test,)))
    case = ET.parse(path).getroot().find(".//testcase")  # noqa: S314 - our own file
    assert case is not None
    return case


FAILED = attempt(1, rank(Outcome.FAILED, message="boom", text="trace", stdout="out", stderr="err"))
CRASHED = attempt(2, rank(Outcome.CRASHED, message="killed"))


def tags(case: ET.Element) -> list[str]:
    return [child.tag for child in case if child.tag != "properties"]


@pytest.mark.parametrize(("before", "tag"), [(FAILED, "flakyFailure"), (CRASHED, "flakyError")], ids=["fail", "error"])
def test_what_went_wrong_before_a_pass_is_flaky(tmp_path: Path, before: TestVerdict, tag: str):
    case = written(tmp_path, Outcome.PASSED, before)
    assert sorted(tags(case)) == sorted(["system-out", tag])


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (FAILED, Outcome.FAILED, ["failure", "rerunFailure"]),
        (CRASHED, Outcome.FAILED, ["failure", "rerunError"]),
        (FAILED, Outcome.CRASHED, ["error", "rerunFailure"]),
        (CRASHED, Outcome.CRASHED, ["error", "rerunError"]),
    ],
    ids=str,
)
def test_what_went_wrong_before_a_failure_is_a_rerun(
    tmp_path: Path, before: TestVerdict, now: Outcome, expected: list[str]
):
    case = written(tmp_path, now, before)
    assert sorted(set(tags(case)) - {"system-out"}) == expected


def test_an_attempt_tells_message_type_stack_and_output(tmp_path: Path):
    flaky = written(tmp_path, Outcome.PASSED, FAILED).find("flakyFailure")
    assert flaky is not None
    assert (flaky.get("message"), flaky.get("type"), flaky.text) == ("rank 0 failed: boom", "failed", None)
    assert [child.tag for child in flaky] == ["stackTrace", "system-out", "system-err"]
    assert flaky.findtext("stackTrace") == "rank 0 failed (primary failure)\n\nrank 0 failed: boom\ntrace"
    assert flaky.findtext("system-out") == "--- rank 0 ---\nout"
    assert flaky.findtext("system-err") == "--- rank 0 ---\nerr"


def test_attempts_stand_in_their_order_and_their_numbers_are_a_property(tmp_path: Path):
    case = written(tmp_path, Outcome.FAILED, replace(CRASHED, number=1), replace(FAILED, number=3))
    assert tags(case) == ["failure", "rerunError", "rerunFailure"]
    said = {item.get("name"): item.get("value") for item in case.iter("property")}
    assert said["allranks.earlier"] == "1:crashed 3:failed"


def test_a_flaky_pass_says_first_what_was_wrong_so_that_no_client_takes_the_attempt_for_the_outcome(tmp_path: Path):
    case = written(tmp_path, Outcome.PASSED, FAILED, CRASHED)
    assert tags(case) == ["system-out", "flakyFailure", "flakyError"]
    assert case.findtext("system-out") == (
        "passed in the end; earlier attempts:\nattempt 1: rank 0 failed: boom\nattempt 2: rank 0 crashed: killed\n"
    )


def test_a_test_that_is_skipped_in_the_end_tells_its_attempts_in_the_text_of_the_skip(tmp_path: Path):
    case = written(tmp_path, Outcome.SKIPPED, FAILED)
    assert set(tags(case)) - {"system-out"} == {"skipped"}
    text = case.findtext("skipped") or ""
    assert "attempt 1 (failed): rank 0 failed: boom" in text
    assert "--- rank 0 ---\nout" in text


def test_of_very_many_attempts_the_first_and_the_last_are_told(tmp_path: Path):
    attempts = [replace(FAILED, number=number) for number in range(1, 101)]
    case = written(tmp_path, Outcome.FAILED, *attempts)
    assert tags(case).count("rerunFailure") == RETRIES
    said = {item.get("name"): item.get("value") for item in case.iter("property")}
    assert said["allranks.earlier_left_out"] == f"{100 - RETRIES}"
