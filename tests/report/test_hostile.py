"""Files that no rank should leave, and somebody will: each alone costs its own results and nothing else.

``hostile/NAME.xml`` is the file; ``hostile/NAME.json`` beside it says what comes of it: the verdict of each test, words
that the report has for the trouble, and the exit code.
"""

import gzip
import json
from pathlib import Path

import junitparser
import pytest
from long_lists import quick

from allranks.report.input_rule import InputRule
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merging import merge

CORPUS = Path(__file__).with_name("hostile")
FILES = sorted(CORPUS.glob("*.xml"))
GOOD = '<testsuites><testsuite><testcase classname="good" name="test" time="1"/></testsuite></testsuites>'


def judged(folder):
    suites: list[CellSuite] = []
    merged = merge(folder, InputRule(world_size=1), environ={}, observers=[suites.append])
    return merged, [test for suite in suites for test in suite.tests]


@pytest.fixture
def folder(tmp_path):
    """A folder with a place for the file, and a good file beside it."""
    for name in ("hostile", "good"):
        (tmp_path / "cell" / name).mkdir(parents=True)
    (tmp_path / "cell/good/rank-0.xml").write_text(GOOD)
    return tmp_path


@pytest.mark.parametrize("file", quick(3, FILES), ids=lambda path: path.stem)
def test_a_hostile_file_comes_to_what_stands_beside_it(folder, file):
    expected = json.loads(file.with_suffix(".json").read_text())
    (folder / "cell/hostile/rank-0.xml").write_bytes(file.read_bytes())
    merged, tests = judged(folder)
    troubles = [test.verdict.message for test in tests if test.classname == "allranks" and test.verdict.is_bad]
    kinds = {test.nodeid: test.verdict.kind for test in tests if test.verdict.message not in troubles}
    assert kinds.pop("good::test") == "passed"
    assert kinds == expected["tests"]
    says = expected.get("says")
    assert len(troubles) == bool(says), troubles
    assert says is None or says in troubles[0]
    assert exit_code(merged, nothing_ran_allowed=False) == (0 if expected["exit_code"] == 5 else expected["exit_code"])


@pytest.mark.parametrize("file", quick(3, FILES), ids=lambda path: path.stem)
def test_the_report_of_a_hostile_file_is_well_formed_and_has_a_testcase_for_each_verdict(folder, file):
    (folder / "cell/hostile/rank-0.xml").write_bytes(file.read_bytes())
    merged, tests = judged(folder)
    cases = [case for suite in junitparser.JUnitXml.fromfile(str(merged.junit)) for case in suite]
    assert len(cases) == len(tests) == merged.counts.tests


def test_the_corpus_is_as_large_as_it_is_meant_to_be():
    assert len(FILES) >= 60
    assert all(file.with_suffix(".json").exists() for file in FILES)


def test_a_compressed_file_is_not_ignored(folder):
    (folder / "cell/good/rank-1.xml.gz").write_bytes(gzip.compress(GOOD.encode()))
    merged, tests = judged(folder)
    assert exit_code(merged, nothing_ran_allowed=False) == 3
    assert any("rank-1.xml.gz" in test.verdict.message for test in tests)


@pytest.mark.parametrize("name", ["rank-1.xml.gz", "rank-1.xml.\n.xml"])
def test_a_folder_in_place_of_a_file_is_not_ignored(folder, name):
    (folder / "cell/good" / name).mkdir()
    merged, _ = judged(folder)
    assert exit_code(merged, nothing_ran_allowed=False) == 3


@pytest.mark.thorough
def test_a_message_of_fifty_megabytes_is_cut(folder):
    case = f'<testcase classname="t" name="a"><failure message="{"m" * (50 << 20)}">text</failure></testcase>'
    (folder / "cell/hostile/rank-0.xml").write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    merged, _ = judged(folder)
    assert merged.counts.failed == 1
    assert merged.junit.stat().st_size < 200_000


def test_all_hostile_files_together_cost_no_more_than_each_alone(tmp_path):
    for file in FILES:
        place = tmp_path / file.stem / "unit"
        place.mkdir(parents=True)
        (place / "rank-0.xml").write_bytes(file.read_bytes())
    merged, tests = judged(tmp_path)
    assert len(merged.suites) == len(FILES)
    expected = [json.loads(file.with_suffix(".json").read_text()) for file in FILES]
    assert len(tests) == sum(len(each["tests"]) + bool(each.get("says")) for each in expected)
