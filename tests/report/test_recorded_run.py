"""A results folder that was recorded once comes to what it came to then: while the schema has its number, the same.

``expected.json`` has the verdicts of the version that wrote it.
"""

import json
import shutil
from pathlib import Path

from allranks import junit
from allranks.report.judge.exit_code import exit_code
from allranks.report.merging import merge
from allranks.report.page.timeline_view import output_diff, timeline_rows
from allranks.report.results import compact

RECORDED = Path(__file__).with_name("recorded")


def told(suites):
    """What a report says of each job and test, in JSON's types."""
    return [
        {
            "job": f"{suite.cell}/{suite.suite}",
            "attempt": suite.attempt,
            "engine": suite.engine,
            "axes": dict(suite.axes),
            "notes": list(suite.notes),
            "tests": [
                {
                    "nodeid": test.nodeid,
                    "name": f"{test.classname}.{test.name}",
                    "kind": test.verdict.kind,
                    "message": test.verdict.message,
                    "leading": test.verdict.leading,
                    "ranks": compact(test.ranks),
                    "seconds": test.time,
                    "earlier": [earlier.verdict.message for earlier in test.earlier],
                }
                for test in suite.tests
            ],
        }
        for suite in suites
    ]


def test_a_recorded_folder_is_judged_as_it_was_then(tmp_path):
    shutil.copytree(RECORDED / "recorded-1", tmp_path / "recorded-1")
    suites = []
    merged = merge(tmp_path / "recorded-1", environ={}, observers=[suites.append])
    expected = json.loads((RECORDED / "expected.json").read_text(encoding="utf-8"))
    assert told(suites) == expected["jobs"]
    assert exit_code(merged, nothing_ran_allowed=False) == expected["exit_code"]


def test_a_recorded_folder_renders_with_all_that_it_tells(tmp_path):
    shutil.copytree(RECORDED / "recorded-1", tmp_path / "recorded-1")
    suites = []
    merged = merge(tmp_path / "recorded-1", environ={}, observers=[suites.append])
    (suite,) = suites
    waits, compares, killed = ((test, suite.timeline_of(test)) for test in suite.tests if test.verdict.is_bad)
    [sentence] = timeline_rows(waits[1], waits[0])["s"]
    assert sentence == "rank 1 never called barrier #3; rank 0 called it 3.42 s before the end"
    assert output_diff(compares[1], compares[0])["t"] == ["@ stdout", "-loss 2.5", "+loss 3.5"]
    assert killed[1].phases[0]
    assert merged.page.stat().st_size > 50_000
    assert len(list(junit.load(merged.junit).cases(verdict=["failure", "error"]))) == 3
