"""The report in files below a limit: each a document of its own, together the whole."""

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from allranks.errors import ResultsError, UsageError
from allranks.junit import stream
from allranks.report.folder import is_merged_report
from allranks.report.judged import MergedRun
from allranks.report.junit_case import FILE_LIMIT, JUnitForm
from allranks.report.junit_document import report_parts
from allranks.report.merging import merge

JOB, OTHER = "gloo-w2-g0-env/s", "gloo-w2-g0-tcp/s"
LIMIT = 12_000


def many(run_folder, limit: int = LIMIT, tests: int = 60) -> MergedRun:
    run_folder.manifest(JOB, OTHER)
    outcomes = ("passed", "failed", "crashed", "skipped")
    run_folder.both(JOB, {f"t.py::test_{number}": outcomes[number % 4] for number in range(tests)}, deselected=1)
    run_folder.both(OTHER, {"t.py::test_last": "passed"})
    return merge(run_folder.path, environ={}, junit_form=JUnitForm(file_limit=limit))


def root_of(path: Path) -> ET.Element:
    return ET.parse(path).getroot()  # noqa: S314 - our own file


def suites_of(path: Path) -> list[ET.Element]:
    return list(root_of(path).iter("testsuite"))


def found(element: ET.Element) -> dict[str, int]:
    """What is in an element, counted."""
    tags = Counter(child.tag for case in element.iter("testcase") for child in case)
    counts = {"failures": tags["failure"], "errors": tags["error"], "skipped": tags["skipped"]}
    return {"tests": sum(1 for _ in element.iter("testcase")), **counts}


def stated(element: ET.Element) -> dict[str, int]:
    return {name: int(element.get(name, "-1")) for name in ("tests", "failures", "errors", "skipped")}


def test_the_limit_is_below_what_gitlab_takes():
    assert FILE_LIMIT <= 30 * 1000**2


def test_what_fits_is_one_file(run_folder):
    merged = many(run_folder, limit=1_000_000)
    assert merged.junit_files == (merged.junit,) == (run_folder.path / "junit.xml",)


def test_what_does_not_fit_goes_on_in_files_with_numbers(run_folder):
    merged = many(run_folder)
    names = [path.name for path in merged.junit_files]
    assert names == ["junit.xml", *(f"junit-{number}.xml" for number in range(2, len(names) + 1))]
    assert len(names) >= 3
    assert all(path.is_file() for path in merged.junit_files)
    assert merged.junit == merged.junit_files[0]


def test_a_part_that_is_absent_is_missed(run_folder):
    parts = many(run_folder).junit_files
    assert list(report_parts(parts[0])) == list(parts)
    parts[-1].unlink()
    assert list(report_parts(parts[0])) == list(parts)
    with pytest.raises(UsageError, match=parts[-1].name):
        list(stream(parts[0]))


def test_every_file_stays_below_the_limit_and_is_well_used(run_folder):
    sizes = [path.stat().st_size for path in many(run_folder).junit_files]
    assert max(sizes) < LIMIT
    assert min(sizes[:-1]) > LIMIT * 0.8


def test_every_file_states_the_counts_of_what_is_in_it_and_together_they_have_everything(run_folder):
    merged = many(run_folder)
    roots = [root_of(path) for path in merged.junit_files]
    for element in (suite for root in roots for suite in root.iter() if suite.tag in {"testsuites", "testsuite"}):
        assert stated(element) == found(element)
        assert found(element)["tests"]
    assert sum(found(root)["tests"] for root in roots) == merged.counts.tests == 61
    assert sum(float(root.get("time", "-1")) for root in roots) == pytest.approx(merged.counts.time, abs=0.01)


def test_a_suite_goes_on_under_its_name_and_says_that_it_does(run_folder):
    first, second, *_ = (suites_of(path)[0] for path in many(run_folder).junit_files)
    said = [{item.get("name"): item.get("value") for item in suite.iter("property")} for suite in (first, second)]
    assert first.get("name") == second.get("name") == "gloo-w2-g0-env / s"
    assert [properties.get("allranks.part") for properties in said] == [None, "2"]
    assert [properties.get("allranks.deselected") for properties in said] == ["1", None]


def test_files_that_are_no_longer_needed_are_removed(run_folder):
    parts = many(run_folder).junit_files
    merged = many(run_folder, limit=1_000_000)
    assert [path.exists() for path in parts] == [True] + [False] * (len(parts) - 1)
    assert merged.junit_files == parts[:1]


def test_splitting_again_changes_nothing(run_folder):
    once = [path.read_bytes() for path in many(run_folder).junit_files]
    assert [path.read_bytes() for path in many(run_folder).junit_files] == once


def test_a_file_of_somebody_else_is_neither_overwritten_nor_removed(run_folder):
    theirs = run_folder.path / "junit-2.xml"
    theirs.write_text("<testsuites/>")
    with pytest.raises(ResultsError, match=r"junit-2\.xml was not written by allranks"):
        many(run_folder)
    assert not (run_folder.path / "junit.xml").exists()
    many(run_folder, limit=1_000_000)
    assert theirs.read_text() == "<testsuites/>"
    assert not list(run_folder.path.glob(".*unfinished*"))


def test_no_part_is_read_as_results(write_ranks):
    cases = [f'<testcase classname="t" name="test_{number}"/>' for number in range(100)]
    root = write_ranks("gloo-w1-g0-env/unit/rank-0.xml", cases)
    form = JUnitForm(file_limit=LIMIT)
    first = merge(root, environ={}, junit_form=form)
    assert len(first.junit_files) > 1
    assert all(map(is_merged_report, first.junit_files))
    assert merge(root, environ={}, junit_form=form).counts.tests == first.counts.tests == 100


def test_a_testcase_beyond_the_limit_has_a_file_of_its_own(run_folder):
    run_folder.manifest(JOB)
    large = {"outcome": "failed", "text": "x" * 30_000}
    run_folder.both(JOB, {"t.py::a": "passed", "t.py::b": large, "t.py::c": "passed"})
    merged = merge(run_folder.path, environ={}, junit_form=JUnitForm(file_limit=LIMIT))
    assert [found(root_of(path))["tests"] for path in merged.junit_files] == [1, 1, 1]


def test_a_failed_merge_leaves_the_parts_that_were_there(run_folder, monkeypatch):
    parts = many(run_folder).junit_files
    before = [path.read_bytes() for path in parts]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "junit.xml")

    monkeypatch.setattr("allranks.report.junit.render_case", full)
    with pytest.raises(ResultsError, match="No space left"):
        many(run_folder)
    assert [path.read_bytes() for path in parts] == before
    assert not list(run_folder.path.glob(".*unfinished*"))
