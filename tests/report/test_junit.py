"""The merged file, read back by junitparser and by junit2html, which share no reader."""

import xml.etree.ElementTree as ET
from pathlib import Path

import junitparser
import pytest

from allranks.report.judged import MergedRun
from allranks.report.merging import merge

ENV, TCP = "gloo-w2-g0-env/collectives", "gloo-w2-g0-tcp/collectives"
HOSTILE = "a/test_h.py::test_h[<&\"']"


@pytest.fixture
def merged(run_folder) -> MergedRun:
    """Two cells with every kind of verdict in them."""
    run_folder.manifest(ENV, TCP)
    tests = {
        "a/test_a.py::test_passes": {"outcome": "passed", "time": 0.5},
        "a/test_a.py::TestX::test_skips": {"outcome": "skipped", "message": "not today"},
        "a/test_a.py::test_expected": {"outcome": "xfailed", "message": "known"},
        "a/test_a.py::test_environment": {
            "outcome": "skipped", "message": "no NCCL", "skip_kind": "environment", "skip_code": 76,
        },
        "a/test_a.py::test_quiet": "failed",
        HOSTILE: {"outcome": "crashed", "message": "]]> <b>&amp;", "text": "]]>" * 3},
    }  # fmt: skip
    run_folder.job(ENV, collected=list(tests))
    run_folder.rank(ENV, 0, tests)
    slower = {"outcome": "failed", "time": 0.75, "message": "boom", "text": "trace", "stdout": "said", "at": 2.0}
    run_folder.rank(ENV, 1, tests | {"a/test_a.py::test_passes": slower})
    run_folder.both(TCP, {"a/test_a.py::test_passes": "passed"}, collected=["a/test_a.py::test_passes", "b.py::gone"])
    return merge(run_folder.path, policy="pass", environ={})


def cases(merged: MergedRun) -> dict[str, junitparser.TestCase]:
    suite = next(iter(junitparser.JUnitXml.fromfile(str(merged.junit))))
    return {case.name: case for case in suite}


def properties(element: junitparser.Element) -> dict[str, str]:
    return {item.name: item.value for item in element.child(junitparser.Properties)}


def test_junitparser_counts_what_we_counted(merged: MergedRun):
    report = junitparser.JUnitXml.fromfile(str(merged.junit))
    stated = (report.tests, report.failures, report.errors, report.skipped, report.time)
    report.update_statistics()
    recounted = (report.tests, report.failures, report.errors, report.skipped, report.time)
    counts = merged.counts
    assert stated == recounted == (8, 2, 2, 2, pytest.approx(counts.time))
    assert (counts.tests, counts.failed, counts.errors, counts.skipped, counts.passed) == (8, 2, 2, 2, 2)


def test_junit2html_counts_what_we_counted(merged: MergedRun):
    from junit2htmlreport.parser import Junit

    report = Junit(filename=str(merged.junit))
    shown = [(suite.name, len(suite.all()), len(suite.failed()), len(suite.skipped())) for suite in report]
    assert shown == [("gloo-w2-g0-env / collectives", 6, 3, 2), ("gloo-w2-g0-tcp / collectives", 2, 1, 0)]
    assert sum(len(suite.passed()) for suite in report) == merged.counts.passed
    page = report.html()
    assert "rank 1 failed: boom" in page
    assert "gloo-w2-g0-tcp / collectives" in page


def test_suites_are_flat_and_each_testcase_has_at_most_one_outcome_with_message_type_and_text(merged: MergedRun):
    root = ET.parse(merged.junit).getroot()  # noqa: S314 - our own file
    assert [child.tag for child in root] == ["testsuite", "testsuite"]
    for case in root.iter("testcase"):
        outcomes = [child for child in case if child.tag in {"failure", "error", "skipped"}]
        assert len(outcomes) <= 1
        for outcome in outcomes:
            assert outcome.get("message")
            assert outcome.get("type")
            assert outcome.text


def test_names_of_pytest_are_kept_and_the_time_is_that_of_the_slowest_rank(merged: MergedRun):
    case = cases(merged)["test_passes"]
    assert (case.classname, case.name, case.time) == ("a.test_a", "test_passes", 0.75)
    assert cases(merged)["test_skips"].classname == "a.test_a.TestX"


def test_the_ranks_are_in_a_property_and_in_the_first_line_of_the_text(merged: MergedRun):
    case = cases(merged)["test_passes"]
    assert properties(case)["allranks.ranks"] == "0:passed 1:failed"
    assert properties(case)["allranks.leading"] == "1"
    (failure,) = case.result
    assert (failure.message, failure.type) == ("rank 1 failed: boom", "failed")
    assert failure.text == "rank 0 passed; rank 1 failed (primary failure)\n\nrank 1 failed: boom\ntrace"
    assert case.system_out == "--- rank 1 ---\nsaid"


def test_a_skip_keeps_its_reason_and_says_whether_it_was_expected_to_fail(merged: MergedRun):
    (skipped,) = cases(merged)["test_skips"].result
    (expected,) = cases(merged)["test_expected"].result
    assert (skipped.message, skipped.type) == ("not today", "pytest.skip")
    assert (expected.message, expected.type) == ("known", "pytest.xfail")


def test_an_environment_skip_read_as_a_pass_keeps_reason_and_code(merged: MergedRun):
    case = cases(merged)["test_environment"]
    assert case.is_passed
    said = properties(case)
    assert (said["allranks.skip_but_pass"], said["allranks.skip_code"]) == ("no NCCL", "76")
    assert said["allranks.skip_kind"] == "environment"
    assert said["allranks.ranks"] == "0,1:skipped"


def test_markup_in_names_and_messages_comes_back_as_it_was(merged: MergedRun):
    (error,) = cases(merged)["test_h[<&\"']"].result
    assert error.message == "rank 0 crashed: ]]> <b>&amp;"
    assert "]]>]]>]]>" in error.text


def test_a_failure_without_message_or_text_still_has_both(merged: MergedRun):
    (failure,) = cases(merged)["test_quiet"].result
    assert failure.message == "rank 0 failed"
    assert failure.text.startswith("rank 0 failed (primary failure)")


def test_the_suite_tells_its_axes_and_where_it_ran(merged: MergedRun):
    suite = next(iter(junitparser.JUnitXml.fromfile(str(merged.junit))))
    said = {item.name: item.value for item in suite.properties()}
    assert (said["allranks.cell"], said["allranks.suite"]) == ("gloo-w2-g0-env", "collectives")
    assert (said["allranks.axis.backend"], said["allranks.axis.world_size"]) == ("gloo", "2")
    assert (said["allranks.engine"], said["allranks.image"], said["allranks.attempt"]) == ("process", "cpu", "1")
    assert (said["allranks.skip_but_pass"], suite.timestamp) == ("1", "1970-01-01T00:16:40+00:00")


def test_two_tests_that_pytest_names_alike_stay_two(run_folder):
    run_folder.both(ENV, {"a/b.py::test_x": "passed", "a.b.py::test_x": "failed"})
    assert set(cases(merge(run_folder.path, environ={}))) == {"test_x", "test_x #2"}


def test_control_characters_from_a_job_record_cannot_break_the_file(run_folder):
    error = {"what": "\x1b[31mIt \x00broke\ud800.", "kind": "infrastructure"}
    run_folder.manifest(ENV)
    run_folder.job(ENV, error=error)
    (case,) = cases(merge(run_folder.path, environ={})).values()
    assert case.result[0].message == "It #x00broke#xD800."


def test_long_texts_and_output_of_several_ranks_stay_readable(run_folder):
    run_folder.job(ENV, collected=["t.py::a"])
    for rank in range(2):
        run_folder.rank(ENV, rank, {"t.py::a": {"outcome": "failed", "text": "x" * 60_000, "stdout": "y" * 60_000}})
    (case,) = cases(merge(run_folder.path, environ={})).values()
    assert len(case.result[0].text) < 70_000
    assert len(case.system_out) < 70_000


def test_the_file_is_as_readable_as_any_other_of_the_user(merged: MergedRun, tmp_path: Path):
    other = tmp_path / "other"
    other.touch()
    assert merged.junit.stat().st_mode == other.stat().st_mode


def test_a_bad_test_names_its_file_and_the_line_that_went_wrong(run_folder):
    text = "/repo/a/test_a.py:31: in test_x\n    helper()\n/repo/a/helpers.py:2: ValueError"
    said = {"outcome": "failed", "message": "no", "text": text}
    run_folder.manifest(ENV)
    run_folder.both(
        ENV, {"a/test_a.py::test_x": said, "a/test_a.py::test_y": "failed", "a/test_a.py::test_z": "passed"}
    )
    found = cases(merge(run_folder.path, environ={}))
    places = {name: (case._elem.get("file"), case._elem.get("line")) for name, case in found.items()}
    assert places == {"test_x": ("a/test_a.py", "31"), "test_y": ("a/test_a.py", None), "test_z": ("a/test_a.py", None)}
