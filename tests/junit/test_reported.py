"""What allranks tells of a run, read back from its report: each value typed."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import junitparser
import pytest

from allranks import junit
from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.report.junit_case import JUnitForm
from allranks.report.merging import merge
from allranks.report.results import VerdictKind

JOB = "gloo-w2-g0-env/s"
TRACE = "/repo/t/test_a.py:31: in test_x\n    check()\n/repo/t/helpers.py:2: ValueError"


@pytest.fixture
def torn(run_folder):
    """A test whose rank 1 fails, in a text that looks like several ranks', while rank 0 waits for it."""
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=["t/test_a.py::test_x", "t/test_a.py::test_y"])
    text = f"rank 0 passed: no\n\nrank 0 aborted: not this\n{TRACE}"
    said = {"outcome": "failed", "at": 1, "message": "boom", "text": text, "time": 0.5}
    waits = {"outcome": "aborted", "at": 2, "caused_by": 1, "message": "in all_reduce", "text": "stack\n\nof 0"}
    run_folder.rank(JOB, 0, {"t/test_a.py::test_x": waits, "t/test_a.py::test_y": "passed"})
    run_folder.rank(JOB, 1, {"t/test_a.py::test_x": said, "t/test_a.py::test_y": {"outcome": "passed", "time": 2}})
    return text, junit.load(merge(run_folder.path, environ={}).junit)


def by_name(report):
    return {case.nodeid: case for case in report.cases()}


def test_each_rank_has_its_outcome_its_time_and_its_own_text(torn):
    text, report = torn
    case = by_name(report)["t/test_a.py::test_x"]
    first, second = case.ranks
    assert (first.rank, first.outcome, first.time, first.leads) == (0, Outcome.ABORTED, 0.25, False)
    assert (second.rank, second.outcome, second.time, second.leads) == (1, Outcome.FAILED, 0.5, True)
    assert (first.text, second.text) == ("stack\n\nof 0", text)
    assert case.rank(1) == second
    assert case.rank(2) is None


def test_a_pass_has_the_time_of_each_rank(torn):
    case = by_name(torn[1])["t/test_a.py::test_y"]
    assert [(rank.outcome, rank.time, rank.text) for rank in case.ranks] == [
        (Outcome.PASSED, 0.25, ""),
        (Outcome.PASSED, 2.0, ""),
    ]
    assert case.time == 2.0


def test_ranks_that_take_as_long_as_each_other_cost_nothing(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=["t.py::x", "t.py::y"])
    for rank, (short, long) in enumerate([(0.001, 10.0), (0.009, 10.4)]):
        run_folder.rank(
            JOB, rank, {"t.py::x": {"outcome": "passed", "time": short}, "t.py::y": {"outcome": "passed", "time": long}}
        )
    path = merge(run_folder.path, environ={}).junit
    assert "allranks.seconds" not in path.read_text()
    assert [[rank.time for rank in case.ranks] for case in junit.load(path).cases()] == [[0.009] * 2, [10.4] * 2]


def test_a_case_has_its_cell_its_axes_and_its_verdict(torn):
    case = by_name(torn[1])["t/test_a.py::test_x"]
    assert (case.cell, case.job, case.axes) == ("gloo-w2-g0-env", "s", {"backend": "gloo", "world_size": 2})
    assert (case.verdict, case.is_bad, case.cause, case.leading) == (VerdictKind.FAILURE, True, "failed", 1)
    assert case.message.startswith("rank 1 failed: boom")
    assert case.is_failure, "junitparser's own"


def test_a_case_has_file_and_line(torn):
    case = by_name(torn[1])["t/test_a.py::test_x"]
    assert (case.file, case.line) == ("t/test_a.py", 31)


@pytest.mark.parametrize("form", [JUnitForm(), JUnitForm(file_limit=4_000), JUnitForm(classname="cell")])
def test_a_report_of_allranks_does_not_contradict_itself(report, form):
    assert junit.problem(report(form)[1]) == ""


def test_every_verdict_of_a_rich_run_is_read_back(report):
    merged, folder = report(JUnitForm())
    found = list(junit.load(folder).cases())
    counts = merged.counts
    assert Counter(case.verdict.value for case in found) == Counter(
        passed=counts.passed, failure=counts.failed, error=counts.errors, skipped=counts.skipped
    )
    assert sum(case.is_flaky for case in found) == counts.flaky
    assert sum("skip_but_pass" in case.facts for case in found) == counts.skip_but_pass
    nodeids = []
    merge(merged.folder, policy="pass", environ={}, observers=[lambda job: nodeids.extend(t.nodeid for t in job.tests)])
    assert sorted(case.nodeid for case in found) == sorted(nodeids)


def test_a_stream_has_the_same_cases_as_the_whole(report):
    _, folder = report(JUnitForm())
    assert [case.row for case in junit.stream(folder)] == [case.row for case in junit.load(folder).cases()]
    assert [list(case.rank_rows) for case in junit.stream(folder)] == [
        list(case.rank_rows) for case in junit.load(folder).cases()
    ]


def test_skips_have_a_code_a_kind_and_a_reason(report):
    cases = by_name(junit.load(report(JUnitForm())[1]))
    lacks = cases["t/test_a.py::environment"]
    assert (lacks.verdict, lacks.skip_code, lacks.skip_kind) == (VerdictKind.PASSED, 76, SkipKind.ENVIRONMENT)
    assert lacks.skip_reason == "no NCCL"
    plain = next(case for case in cases.values() if case.skip_reason == "the module needs CUDA")
    assert (plain.verdict, plain.skip_code, plain.skip_kind) == (VerdictKind.SKIPPED, None, None)


def test_attempts_have_their_numbers_causes_and_texts(report):
    cases = by_name(junit.load(report(JUnitForm())[1]))
    flaky = cases["t/test_a.py::flaky_error"]
    assert [(each.number, each.cause, each.message) for each in flaky.attempts] == [
        (1, "crashed", "rank 0 crashed: flaky_error <&>"),
        (2, "crashed", "rank 0 crashed: flaky_error <&>"),
    ]
    assert "trace of flaky_error" in flaky.attempts[0].text
    assert flaky.is_flaky


def test_of_many_attempts_each_has_its_own_text(run_folder):
    run_folder.manifest(JOB)
    for number in range(1, 31):
        run_folder.job(JOB, number=number, collected=["t.py::x"])
        for rank in range(2):
            said = "passed" if number == 30 else {"outcome": "failed", "message": f"m{number}"}
            run_folder.rank(JOB, rank, {"t.py::x": said}, number=number)
    (case,) = junit.load(merge(run_folder.path, environ={}).junit).cases()
    messages = {each.number: each.message for each in case.attempts}
    assert list(messages) == list(range(1, 30))
    assert (messages[1], messages[10], messages[11]) == ("rank 0 failed: m1", "rank 0 failed: m10", "")
    assert (messages[19], messages[20], messages[29]) == ("", "rank 0 failed: m20", "rank 0 failed: m29")


def test_a_report_in_parts_is_read_whole(report):
    merged, folder = report(JUnitForm(file_limit=60_000))
    assert len(merged.junit_files) > 1
    whole = junit.load(folder / "junit.xml")
    assert (whole.tests, len(list(whole.cases()))) == (merged.counts.tests, merged.counts.tests)
    assert len(list(junit.stream(folder / "junit.xml"))) == merged.counts.tests


def test_cases_are_selected_by_cell_axis_rank_and_verdict(report):
    _, folder = report(JUnitForm())
    whole = junit.load(folder)
    bad = list(whole.cases(verdict=["failure", "error"]))
    assert len(bad) == sum(case.is_bad for case in whole.cases()) > 5
    assert {case.cell for case in whole.cases(cell="*-tcp")} == {"gloo-w2-g0-tcp"}
    assert len(list(whole.cases(world_size=2))) == len(list(whole.cases()))
    assert list(whole.cases(world_size=4)) == list(whole.cases(rank=2)) == []
    assert list(whole.cases(backend="gloo", rank=1, verdict="error"))


def test_a_row_is_flat_and_has_the_axes(torn):
    row = by_name(torn[1])["t/test_a.py::test_x"].row
    assert (row["world_size"], row["cell"], row["verdict"], row["leading"]) == (2, "gloo-w2-g0-env", "failure", 1)
    assert {type(value) for value in row.values()} <= {str, int, float, bool, type(None)}


def test_a_rank_beyond_counting_costs_nothing(write):
    text = (
        '<testsuites><testsuite name="s"><testcase name="x"><properties>'
        '<property name="allranks.ranks" value="0-999999999:passed 1:failed"/>'
        "</properties></testcase></testsuite></testsuites>"
    )
    (case,) = junit.load(write(text)).cases()
    assert len(case.ranks) < 100_000


def test_ranks_that_are_repeated_without_end_cost_nothing(write):
    ranks = '<property name="allranks.ranks" value="' + "0-999999999:failed " * 100_000 + '"/>'
    texts = '<property name="allranks.texts" value="' + "0-999999999@0+2 " * 100_000 + '"/>'
    failure = f"<failure>{'x' * 100_000}</failure>"
    case = f'<testcase name="x"><properties>{ranks}{texts}</properties>{failure}</testcase>'
    path = write(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    [case] = junit.load(path).cases()
    assert {rank.text for rank in case.ranks} == {"xx"}


def test_junitparsers_own_commands_work_on_ours(report, tmp_path):
    merged, folder = report(JUnitForm())
    command = [sys.executable, "-m", "junitparser"]
    twice = tmp_path / "twice.xml"
    subprocess.run([*command, "merge", folder / "junit.xml", folder / "junit.xml", twice], check=True)
    assert junit.load(twice).tests == 2 * merged.counts.tests
    assert subprocess.run([*command, "verify", folder / "junit.xml"], check=False).returncode == 1


def test_what_is_loaded_is_junitparsers_and_can_be_changed_and_written(report, tmp_path):
    merged, folder = report(JUnitForm())
    whole = junit.load(folder)
    assert isinstance(whole, junitparser.JUnitXml)
    whole.update_statistics()
    assert whole.tests == merged.counts.tests
    case = next(each for suite in whole for each in suite if not each.attempts)
    case.result = junitparser.Skipped("by hand")
    assert case == case  # noqa: PLR0124 - junitparser compares by what is written
    whole.write(str(tmp_path / "changed.xml"))
    again = next(each for each in junit.load(tmp_path / "changed.xml").cases() if each.nodeid == case.nodeid)
    assert (again.verdict, again.message) == (VerdictKind.SKIPPED, "by hand")


def test_text_that_was_cut_is_nobodys(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {"t.py::x": {"outcome": "failed", "message": "no", "text": "x" * 300_000}})
    (case,) = junit.load(merge(run_folder.path, environ={}).junit).cases()
    assert [rank.text for rank in case.ranks] == ["", ""]
    assert "characters cut here" in case.text


def test_values_are_frozen(torn):
    rank = by_name(torn[1])["t/test_a.py::test_x"].ranks[0]
    assert replace(rank, text="") != rank
