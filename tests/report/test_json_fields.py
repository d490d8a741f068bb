"""run.json and job.json of any shape: a field of another type is one sentence that names it, and costs no results."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.summary import render_table

JOB = "gloo-w2-g0-env/s"
A = "t.py::test_a"
MANIFEST = {
    "schema": 2,
    "run_id": "r1",
    "policy": {"skip": "pass", "mixed_skip": ["t.py::*"], "baseline": {"gloo-w2-g0-env": {"s": 1}}},
    "cells": {"gloo-w2-g0-env": {"backend": "gloo", "world_size": 2}},
    "jobs": [{"cell": "gloo-w2-g0-env", "suite": "s", "id": JOB, "image": "cpu", "pytest_args": ["-x"]}],
}
RECORD = {
    "schema": 2,
    "world_size": 2,
    "engine": "process",
    "run_id": "r1",
    "image": "cpu",
    "spec": {"code": "/c"},
    "gpus": ["GPU-1"],
    "error": {"kind": "agent", "what": "It broke.", "why": "Somehow.", "remedy": "None."},
    "collected": [A],
    "deselected": 0,
    "not_run": ["b"],
    "stop_reason": "-x",
    "notes": ["Note"],
    "repeated": {A: {"runs": 9, "bad": 2}},
    "started": 1000.0,
    "finished": 1002.5,
    "share": {"suite": "s", "number": 1, "count": 2, "split": "abc", "elsewhere": 3},
    "continues": 0,
}
DOCUMENTS = {"run.json": MANIFEST, f"cells/{JOB}/attempt-1/job.json": RECORD}
NODEID = '<properties><property name="allranks.nodeid" value="{}"/></properties>'
CASE = f'<testcase classname="t" name="test_a">{NODEID}</testcase>'
ODD = [
    None, True, False, 0, 1, -1, 2**40, 10**400, 0.5, -0.5, 1e308, float("inf"), float("nan"), "", "x", "\ud800", "\0",
    "\x1b[31m", [], {}, [[]], [None], [{}], [1], ["x"], {"x": 1}, {"": {}}, {"x": {"y": "z"}}, [["x"]] * 3,
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=4), each, max_size=3),
    max_leaves=5,
)


def write(folder, name, path, value):
    """A run of which one field of one file has another value."""
    for each, document in DOCUMENTS.items():
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_text(json.dumps(changed(document, path, value) if each == name else document))
    for rank in range(2):
        document = f"<testsuites><testsuite>{CASE.format(A)}</testsuite></testsuites>"
        (folder / f"cells/{JOB}/attempt-1/rank-{rank}.xml").write_text(document)


def places(value, path=()):
    """The way to each value within a JSON document."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def changed(document, path, value):
    """The document with another value at one place, or without one where that is ``...``."""
    if not path:
        return value
    copy = document.copy()
    if value is ... and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(document[path[0]], path[1:], value)
    return copy


def judged(folder):
    """Merges and renders all that a command shows; the exit code, and the tests."""
    suites: list[CellSuite] = []
    merged = merge(folder, environ={}, observers=[suites.append])
    assert render_table(merged)
    for path in (merged.junit, merged.page, merged.summary):
        assert path.read_text(encoding="utf-8")
    tests = {test.nodeid: test.verdict for suite in suites for test in suite.tests}
    return exit_code(merged, nothing_ran_allowed=False), tests


FIELDS = [(name, path) for name, document in DOCUMENTS.items() for path in places(document)]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "path"), FIELDS, ids=str)
def test_any_value_of_any_type_in_any_field_costs_no_more_than_its_file(tmp_path, name, path):
    for value in [*([...] if path and isinstance(path[-1], str) else []), *ODD]:
        write(tmp_path, name, path, value)
        code, tests = judged(tmp_path)
        assert code in {0, 1, 3}
        assert A in tests


@given(field=st.sampled_from(FIELDS), value=JSON | st.sampled_from(ODD))
def test_any_json_in_any_field_costs_no_more_than_its_file(tmp_path_factory, field, value):
    folder = tmp_path_factory.mktemp("run")
    write(folder, *field, value)
    code, tests = judged(folder)
    assert code in {0, 1, 3}
    assert A in tests


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("run_id",), 7, "run.json is damaged: run_id is 7, not a string."),
        (("policy", "skip"), "banana", "run.json is damaged: policy.skip is 'banana', not 'skip' or 'pass'."),
        (("policy", "mixed_skip"), "t.py", "run.json is damaged: policy.mixed_skip is 't.py', not a list."),
        (("jobs", 0, "cell"), None, "run.json is damaged: jobs.0.cell is None, not a string."),
        (("jobs", 0), [], "run.json is damaged: jobs.0 is a list, not an object."),
        (("cells",), [], "run.json is damaged: cells is a list, not an object."),
        (("collected",), "abc", "job.json is damaged: collected is 'abc', not a list."),
        (("collected",), [1], "job.json is damaged: collected.0 is 1, not a string."),
        (("world_size",), True, "job.json is damaged: world_size is True, not a whole number from 1 to 16384."),
        (("world_size",), 0, "job.json is damaged: world_size is 0, not a whole number from 1 to 16384."),
        (("share", "count"), 10**9, "job.json is damaged: share.count is 1000000000, not a whole number from 1 to"),
        (("started",), 1e308, "job.json is damaged: started is 1e+308, not a number of seconds since 1970."),
        (("error", "what"), ["x"], "job.json is damaged: error.what is a list, not a string."),
    ],
)
def test_the_field_and_what_it_should_be_are_named(tmp_path, path, value, says):
    name = next(name for name, document in DOCUMENTS.items() if path[0] in document)
    write(tmp_path, name, path, value)
    code, tests = judged(tmp_path)
    assert any(verdict.message.startswith(says) for verdict in tests.values()), [
        each.message for each in tests.values()
    ]
    assert code == 3


def test_a_document_that_is_no_object_is_damaged(tmp_path):
    write(tmp_path, "run.json", (), [])
    messages = [verdict.message for verdict in judged(tmp_path)[1].values()]
    assert "run.json is damaged: the document is a list, not an object." in messages


def test_terminal_colours_of_a_record_are_removed(tmp_path):
    write(tmp_path, next(reversed(DOCUMENTS)), ("error", "what"), "\x1b[31mIt broke.")
    assert judged(tmp_path)[1]["allranks::job"].message == "It broke."
