"""``allranks show``: a report on the terminal and for programs, and one error for what is none."""

import json
import sys
from xml.sax.saxutils import escape

import pytest

import allranks as allranks_package

CASE = '<testcase classname="t" name="{}" time="{}"{}>{}</testcase>'
PROPERTIES = (
    '<properties><property name="allranks.nodeid" value="t.py::bad"/><property name="allranks.leading" value="1"/>'
    '<property name="allranks.ranks" value="0:aborted 1:failed"/><property name="allranks.seconds" value="3 0.5"/>'
    '<property name="allranks.texts" value="1@0+20 0@20+5"/></properties>'
)


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "junit.xml"
    text = escape("t.py:3: ValueError\n\nstack")
    bad = f'{PROPERTIES}<failure message="rank 1 failed: &#27;" type="failed">{text}</failure>'.replace("&#27;", "no")
    good = '<properties><property name="allranks.ranks" value="0:passed"/></properties>'
    cases = CASE.format("bad", 3, ' file="t.py" line="3"', bad) + CASE.format("good", 0.25, "", good)
    path.write_text(
        '<testsuites name="allranks"><testsuite name="c / s"><properties><property name="allranks.cell" value="c"/>'
        '<property name="allranks.suite" value="s"/><property name="allranks.axis.world_size" value="2"/></properties>'
        f"{cases}</testsuite></testsuites>"
    )
    return path


def test_each_test_has_a_line_and_a_bad_one_what_went_wrong(allranks, report):
    code, out, _ = allranks("show", str(report))
    assert code == 0
    assert out.splitlines() == [
        "failure      3.00 s  c / s: t.py::bad (t.py:3)",
        "    rank 1 failed: no",
        "    ranks: 0:aborted 1:failed",
        "      t.py:3",
        "passed       0.25 s  c / s: t::good",
        "2 tests: 1 failed, 1 passed",
    ]


def test_failed_ones_alone(allranks, report):
    _, out, _ = allranks("show", str(report), "--failed")
    assert "t::good" not in out
    assert out.endswith("1 test: 1 failed\n")


def test_a_report_that_contradicts_itself_is_said(allranks, tmp_path):
    (tmp_path / "r.xml").write_text('<testsuite failures="1"><testcase name="a"/></testsuite>')
    message = "r.xml contradicts itself: a suite declares failures=1, but has failures=0."
    assert allranks("show", str(tmp_path / "r.xml"))[1].endswith(f"{message}\n1 test: 1 passed\n")
    assert json.loads(allranks("show", str(tmp_path / "r.xml"), "--json")[1])["problem"] == message


def test_pytests_subtests_are_noted(allranks, tmp_path):
    (tmp_path / "r.xml").write_text(
        '<testsuites name="pytest tests"><testsuite tests="2"><testcase name="a"/></testsuite></testsuites>'
    )
    message = "r.xml: pytest declares 2 tests but has 1, because it counts subtests."
    assert allranks("show", str(tmp_path / "r.xml"))[1].endswith(f"{message}\n1 test: 1 passed\n")
    assert json.loads(allranks("show", str(tmp_path / "r.xml"), "--json")[1])["note"] == message


def test_one_rank_has_its_own_outcome_and_time(allranks, report):
    _, out, _ = allranks("show", str(report), "--rank", "0")
    assert out.splitlines()[0] == "rank 0 aborted     3.00 s  c / s: t.py::bad (t.py:3)"
    assert "rank 0 passed" in out
    _, out, _ = allranks("show", str(report), "--rank", "1")
    assert out.startswith("rank 1 failed     0.50 s")
    assert "good" not in out, "rank 1 took no part in it"
    assert allranks("show", str(report), "--rank", "5")[:2] == (0, "no such test\n")


def test_a_report_is_one_object_for_programs(allranks, report):
    code, out, _ = allranks("show", str(report), "--json")
    output = json.loads(out)
    counts = {
        "tests": 2,
        "passed": 1,
        "failed": 1,
        "errors": 0,
        "skipped": 0,
        "not_run": 0,
        "skip_but_pass": 0,
        "flaky": 0,
        "time": 3.25,
    }
    assert (code, output["schema"], output["counts"], output["note"]) == (0, 1, counts, None)
    bad = output["tests"][0]
    assert (bad["cell"], bad["axes"], bad["leading"], bad["line"]) == ("c", {"world_size": 2}, 1, 3)
    assert bad["ranks"][1] == {
        "rank": 1, "outcome": "failed", "time": 0.5, "text": "t.py:3: ValueError\n\n", "leads": True,
    }  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "There is no report"),
        ("<html/>", "Its root element is <html>"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><testsuites/>', "document type"),
        ('<testsuites><testsuite name="s"><testcase name="x"/>', "no element found"),
    ],
)
def test_what_is_no_report_is_exit_code_2(allranks, tmp_path, text, says, options):
    path = tmp_path / "junit.xml"
    if text is not None:
        path.write_text(text)
    code, out, err = allranks("show", str(path), *options)
    assert code == 2
    assert says in err
    assert "Traceback" not in err
    assert not options or out == ""


def test_names_and_texts_of_tests_give_no_orders_to_a_terminal(allranks, tmp_path):
    path = tmp_path / "junit.xml"
    path.write_text(
        '<testsuite name="s"><testcase name="a&#x9b;2J&#x202e;b"><error message="&#x9d;0;t"/></testcase></testsuite>'
    )
    _, out, _ = allranks("show", str(path))
    assert not {"\x9b", "\x9d", "\u202e"} & set(out)


def test_without_junitparser_the_remedy_is_named(allranks, report, monkeypatch):
    monkeypatch.setitem(sys.modules, "junitparser", None)
    monkeypatch.delattr(allranks_package, "junit", raising=False)
    for name in [name for name in sys.modules if name.startswith("allranks.junit")]:
        monkeypatch.delitem(sys.modules, name)
    code, _, err = allranks("show", str(report))
    assert code == 2
    assert "pip install junitparser" in err


def test_an_axis_may_have_the_name_of_a_column(allranks, tmp_path):
    axis = '<properties><property name="allranks.axis.verdict" value="9"/></properties>'
    path = tmp_path / "junit.xml"
    path.write_text(f'<testsuite>{axis}<testcase name="x"/></testsuite>')
    output = json.loads(allranks("show", str(path), "--json")[1])["tests"][0]
    assert (output["verdict"], output["axes"]) == ("passed", {"verdict": 9})
