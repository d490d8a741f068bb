"""Sections of plug-ins that go wrong: the report is written without them, and says so."""

import json
import re

import pytest

from allranks.errors import ResultsError
from allranks.report.merging import merge
from allranks.report.section import RESERVED, GuardedMaker, Section, SectionMaker
from allranks.report.summary import render_table


class Moon(SectionMaker):
    """A section that does what a test says."""

    name = "moon"

    def __init__(self, take=lambda: None, make=lambda: None):
        self.take, self.make = take, make

    def __call__(self, _suite):
        self.take()

    def section(self, _merged):
        return self.make()


class Sun(Moon):
    name = "sun"


def raising(error):
    def fail():
        raise error

    return fail


def section(**fields):
    return lambda: Section(**{"title": "The moon", "headline": "it is full", **fields})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "gloo-w1-g0-env/s").mkdir(parents=True)
    (tmp_path / "gloo-w1-g0-env/s/rank-0.xml").write_text('<testsuite><testcase classname="t" name="x"/></testsuite>')
    return tmp_path


@pytest.mark.parametrize(
    ("maker", "told"),
    [
        (Moon(take=raising(ZeroDivisionError("division by zero"))), "ZeroDivisionError: division by zero"),
        (Moon(take=raising(SystemExit(3))), "SystemExit: 3"),
        (Moon(make=raising(KeyError("crater"))), "KeyError: 'crater'"),
        (Moon(make=raising(OSError(28, "No space left on device"))), "OSError: [Errno 28] No space left on device"),
        (Moon(make=raising(ResultsError("The moon is new.", why="It is dark."))), "ResultsError: The moon is new."),
        (Moon(make=raising(ValueError())), "ValueError"),
        (Moon(make=lambda: "it is full"), "TypeError: it is a str, not a Section"),
        (Moon(make=section(object={"phase": object()})), "TypeError: Object of type object is not JSON serializable"),
        (Moon(make=section(lines=("new", 1))), "TypeError: one of its texts is not a string, but 1"),
        (Moon(make=section(html="\ud800")), "UnicodeEncodeError: 'utf-8' codec can't encode character"),
    ],
)
def test_a_section_that_fails_is_one_note_and_all_else_is_in_the_report(folder, maker, told):
    merged = merge(folder, environ={}, observers=[maker, Sun(make=section(title="The sun", object={"spots": 3}))])
    report = json.loads((folder / "report.json").read_text())
    [note] = [note for note in report["notes"] if "moon" in note]
    assert note.startswith(f"The section moon is missing from this report: {told}")
    assert "\n" not in note
    assert ("moon" in report, report["sun"], report["counts"]["passed"]) == (False, {"spots": 3}, 1)
    for shown in (render_table(merged), *((folder / name).read_text() for name in ("summary.md", "report.html"))):
        assert shown.count("The section moon is missing from this report") == 1
        assert "The sun" in shown
    assert 'id="moon"' not in (folder / "report.html").read_text()


def test_a_maker_that_has_failed_is_not_called_again(folder):
    (folder / "gloo-w1-g0-env/more").mkdir()
    (folder / "gloo-w1-g0-env/more/rank-0.xml").write_text('<testsuite><testcase classname="t" name="y"/></testsuite>')
    calls = []

    def take():
        calls.append(1)
        raise ValueError

    merge(folder, environ={}, observers=[Moon(take=take, make=lambda: calls.append(2))])
    assert calls == [1]


@pytest.mark.parametrize("made", [raising(ValueError("no moon")), lambda: 3, lambda: Moon(make=raising(KeyError()))])
def test_a_section_of_an_unfinished_run_that_fails_is_a_note(folder, made):
    class Waning(Moon):
        def for_unfinished_run(self):
            return made()

    maker = GuardedMaker(Waning(take=raising(AssertionError))).for_unfinished_run()
    assert [note.partition(":")[0] for note in merge(folder, environ={}, observers=[maker]).notes] == [
        "The section moon is missing from this report"
    ]


def test_an_interrupt_in_a_section_is_one_of_the_merge(folder):
    with pytest.raises(KeyboardInterrupt):
        merge(folder, environ={}, observers=[Moon(make=raising(KeyboardInterrupt()))])


def test_the_keys_and_anchors_of_the_report_are_reserved(folder, allranks):
    keys = set(json.loads(allranks("report", str(folder), "--json")[1]))
    keys |= set(json.loads((folder / "report.json").read_text()))
    anchors = set(re.findall(r'\bid(?:=|: )"(\w+)"', (folder / "report.html").read_text()))
    assert {"counts", "files", "suites"} <= keys
    assert {"failures", "slowest", "search"} <= anchors
    assert keys | anchors == RESERVED
