"""docs/downloaded-report.md: its Python runs on a report of ours, and its table names what there is."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

from allranks.junit import ReportedCase
from allranks.report.junit_case import JUnitForm

PAGE = (Path(__file__).parents[2] / "docs" / "downloaded-report.md").read_text(encoding="utf-8")
LOOP, TABLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_loop_prints_what_went_wrong(report, monkeypatch, capsys):
    monkeypatch.chdir(report(JUnitForm())[1])
    exec(LOOP.replace("world_size=4", "world_size=2"), {})  # noqa: S102 - of our own page
    said = capsys.readouterr().out
    assert "gloo-w2-g0-env t/test_a.py::TestX::fails 0 rank 0 failed: boom" in said
    assert "1 failed 0.25 E boom" in said


def test_pandas_gets_a_row_for_each_test_and_for_each_rank(report, monkeypatch):
    merged, folder = report(JUnitForm())
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    names: dict[str, list[dict[str, object]]] = {}
    exec(f"from allranks import junit\n{TABLES}", names)  # type: ignore[arg-type] # noqa: S102 - of our own page
    assert len(names["tests"]) == merged.counts.tests
    assert {"cell", "rank", "rank_time", "world_size"} <= names["ranks"][0].keys()
    assert len({frozenset(row) for row in names["ranks"]}) == 1


def test_the_table_names_what_a_testcase_has():
    table = PAGE.partition("| of a testcase | |")[2].partition("\n\n")[0]
    names = {
        name.partition("(")[0]
        for row in table.splitlines()
        for name in re.findall(r"`([^`]+)`", row.split("|")[1] if "|" in row else "")
    }
    assert len(names) > 15
    assert all(hasattr(ReportedCase, name) for name in names)
