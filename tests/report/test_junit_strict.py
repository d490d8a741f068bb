"""The narrow form, held against the schemas of Jenkins' xUnit plug-in and of Maven's Surefire.

Both lie in the folder ``schemas``, unchanged and with their licences: MIT (Gregory Boissinot), and Apache 2.0 (The
Apache Software Foundation).
"""

import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from any_suites import SUITES
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from allranks.report.judged import CellSuite, MergedRun
from allranks.report.junit import JUnitWriter
from allranks.report.junit_case import JUnitForm
from allranks.report.merging import merge

ENV, TCP = "gloo-w2-g0-env/s", "gloo-w2-g0-tcp/s"
NARROW = JUnitForm(schema="narrow")


@pytest.fixture(scope="module")
def schemas() -> list[etree.XMLSchema]:
    files = sorted(Path(__file__).with_name("schemas").glob("*.xsd"))
    assert len(files) == 2
    return [etree.XMLSchema(etree.parse(file)) for file in files]


@pytest.fixture
def merged(run_folder) -> MergedRun:
    run_folder.manifest(ENV, TCP)
    tests = {
        "t.py::passes": {"outcome": "passed", "time": 1.25},
        "t.py::fails": {"outcome": "failed", "message": "boom", "text": "trace", "stdout": "said"},
        "t.py::crashes": {"outcome": "crashed", "message": "killed"},
        "t.py::skips": {"outcome": "skipped", "message": "not today"},
        "t.py::expected": {"outcome": "xfailed", "message": "known"},
        "t.py::environment": {"outcome": "skipped", "message": "no\nNCCL", "skip_kind": "environment", "skip_code": 76},
        "t.py::flaky": "passed",
        "t.py::never": "crashed",
    }
    for number, said in ((1, {"t.py::flaky": "failed", "t.py::never": "failed"}), (2, tests)):
        run_folder.job(ENV, number=number, collected=list(said))
        for rank in range(2):
            run_folder.rank(ENV, rank, said, number=number)
    return merge(run_folder.path, policy="pass", environ={}, junit_form=NARROW)


def case(merged: MergedRun, name: str) -> ET.Element:
    root = ET.parse(merged.junit).getroot()  # noqa: S314 - our own file
    return next(case for case in root.iter("testcase") if case.get("name") == name)


def facts(merged: MergedRun, name: str) -> list[str]:
    """What is told of a testcase above its output."""
    lines = (case(merged, name).findtext("system-out") or "").splitlines()
    return [line for line in lines if line.startswith("allranks.")]


def test_both_schemas_accept_it(merged: MergedRun, schemas: list[etree.XMLSchema]):
    document = etree.parse(merged.junit)
    for schema in schemas:
        schema.assertValid(document)


@pytest.mark.usefixtures("merged")
def test_neither_schema_accepts_the_usual_form(run_folder, schemas: list[etree.XMLSchema]):
    usual = etree.parse(merge(run_folder.path, environ={}).junit)
    assert [schema.validate(usual) for schema in schemas] == [False, False]


@settings(max_examples=50)
@given(st.lists(SUITES, max_size=2), st.sampled_from([2_000, 30_000_000]))
def test_both_schemas_accept_whatever_tests_say(schemas: list[etree.XMLSchema], suites: list[CellSuite], limit: int):
    with tempfile.TemporaryDirectory() as folder:
        with JUnitWriter(Path(folder) / "junit.xml", JUnitForm(schema="narrow", file_limit=limit)) as writer:
            for suite in suites:
                writer.add(suite)
        for document in map(etree.parse, writer.files):
            for schema in schemas:
                schema.assertValid(document)


@pytest.mark.usefixtures("merged")
def test_every_file_of_a_split_report_is_accepted(run_folder, schemas: list[etree.XMLSchema]):
    split = merge(run_folder.path, environ={}, junit_form=JUnitForm(schema="narrow", file_limit=2_500))
    assert len(split.junit_files) > 2
    for document in map(etree.parse, split.junit_files):
        for schema in schemas:
            schema.assertValid(document)


def test_one_suite_has_all_jobs_with_cell_and_suite_in_class_names(merged: MergedRun):
    root = ET.parse(merged.junit).getroot()  # noqa: S314 - our own file
    assert (root.tag, root.get("tests")) == ("testsuite", "9")
    classes = {case.get("classname") for case in root.iter("testcase")}
    assert classes == {"gloo-w2-g0-env.s.t", "gloo-w2-g0-tcp.s.allranks"}


def test_what_a_suite_says_is_a_property_under_its_name(merged: MergedRun):
    root = ET.parse(merged.junit).getroot()  # noqa: S314 - our own file
    said = {item.get("name"): item.get("value") for item in root.iter("property")}
    env = "allranks.gloo-w2-g0-env / s"
    assert said[f"{env}.axis.backend"] == "gloo"
    assert said[f"{env}.attempt"] == "2"
    assert said[f"{env}.timestamp"] == "1970-01-01T00:16:40+00:00"
    assert said[f"{env}.counts"].startswith("tests=8 failures=1 errors=2 skipped=2 time=")
    assert said["allranks.gloo-w2-g0-tcp / s.counts"] == "tests=1 failures=0 errors=1 skipped=0 time=0.000"


def test_what_a_testcase_says_besides_is_above_its_output(merged: MergedRun):
    assert facts(merged, "passes") == [
        "allranks.cell: gloo-w2-g0-env",
        "allranks.suite: s",
        "allranks.nodeid: t.py::passes",
        "allranks.ranks: 0,1:passed",
        "allranks.rule: 5",
    ]
    out = case(merged, "fails").findtext("system-out") or ""
    assert out.endswith("allranks.leading: 0\n--- rank 0 ---\nsaid\n--- rank 1 ---\nsaid")


def test_an_expected_failure_is_told_from_a_skip(merged: MergedRun):
    assert facts(merged, "skips")[-1] == "allranks.type: pytest.skip"
    assert facts(merged, "expected")[-1] == "allranks.type: pytest.xfail"


def test_a_skip_read_as_a_pass_keeps_its_reason_on_lines_of_its_own(merged: MergedRun):
    out = case(merged, "environment").findtext("system-out") or ""
    assert "allranks.skip_code: 76\n" in out
    assert "allranks.skip_but_pass: no\n    NCCL\n" in out


def test_retries_stand_where_the_schema_has_them(merged: MergedRun):
    assert [child.tag for child in case(merged, "flaky")] == ["flakyFailure", "system-out"]
    assert [child.tag for child in case(merged, "never")] == ["rerunFailure", "error", "system-out"]
    assert "allranks.earlier: 1:failed" in facts(merged, "never")
