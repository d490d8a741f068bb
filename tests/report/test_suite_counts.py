"""Counts that suites declare: those that contradict the testcases are an error."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_lists import quick

from allranks.report.input_rule import InputRule
from allranks.report.merging import merge
from allranks.report.rank_xml import RankReader

GOOD = '<testcase classname="t" name="a"/>'
BAD = '<testcase classname="t" name="b"><failure message="m"/></testcase>'
ELEMENTS = {"": "", "failures": "<failure/>", "errors": "<error/>", "skipped": "<skipped/>"}


@pytest.fixture
def read(tmp_path):
    """Reads a document that is written for it."""

    def of(document):
        path = tmp_path / "rank-0.xml"
        path.write_text(document)
        return RankReader().read(path)

    return of


def suite(attributes, *inside):
    return f"<testsuites><testsuite {attributes}>{''.join(inside)}</testsuite></testsuites>"


SIZE = '<property name="allranks.world_size" value="{}"/>'


def test_a_property_with_two_values_is_a_contradiction(read):
    inside = f"<properties>{SIZE.format(2)}{SIZE.format(1)}</properties>{GOOD}"
    assert "allranks.world_size is 2 and 1" in read(suite("", inside)).problem


@pytest.mark.parametrize(
    ("attributes", "inside", "says"),
    [
        ('tests="5" errors="2"', GOOD, "tests=5, errors=2, but has tests=1, errors=0"),
        ('tests="5"', GOOD, "tests=5, but has tests=1"),
        ('tests="1"', GOOD * 2, "tests=1, but has tests=2"),
        ('tests="0"', GOOD, "tests=0, but has tests=1"),
        ('tests="3"', '<testcase name="a"><rerun/></testcase>', "tests=3, but has tests=1"),
        ('errors="1"', GOOD, "errors=1, but has errors=0"),
        ('failures="0"', BAD, "failures=0, but has failures=1"),
        ('failures="2"', BAD, "failures=2, but has failures=1"),
        ('errors="1"', BAD, "errors=1, but has errors=0"),
        ('skipped="1"', GOOD, "skipped=1, but has skipped=0"),
        ('tests="00000000000000000000000000007"', GOOD, "tests=7, but has tests=1"),
        ('skipped="1"', f"<testsuite>{GOOD}</testsuite>", "skipped=1, but has skipped=0"),
        ('tests="50" errors="5"', '<testcase name="a"><flakyFailure/></testcase>', "tests=50, errors=5, but has"),
        ('disabled="1"', GOOD, "disabled=1, but has disabled=0"),
        ('tests="2"', f'<testsuite tests="2">{GOOD * 2}</testsuite>{GOOD * 2}{GOOD}', "tests=2, but has tests=5"),
        ('tests="1"', f'<testsuite tests="1">{GOOD * 2}</testsuite>', "tests=1, but has tests=2"),
    ],
)  # fmt: skip
def test_what_a_suite_declares_and_does_not_have_is_a_contradiction(read, attributes, inside, says):
    file = read(suite(attributes, inside))
    assert file.problem.startswith("rank-0.xml contradicts itself: a suite ")
    assert says in file.problem
    assert file.results


@pytest.mark.parametrize("said", ["-1", "many", "1.5", "nan", "", "1,000", "1,024", "1" * 19])
def test_a_count_that_is_none_is_an_error_that_quotes_it(read, said):
    assert f'a suite declares tests="{said}", which is not a count' in read(suite(f'tests="{said}"', GOOD)).problem


def test_a_contradiction_is_an_error_of_the_run(tmp_path):
    (tmp_path / "rank-0.xml").write_text(suite('tests="2"', GOOD))
    assert merge(tmp_path, InputRule(world_size=1), environ={}).counts.errors == 1


@pytest.mark.parametrize("root", ['tests="0"', 'tests="2"', 'errors="1"', 'failures="1"'])
def test_the_counts_of_the_root_are_compared_too(read, root):
    assert "contradicts itself" in read(f"<testsuites {root}><testsuite>{GOOD}</testsuite></testsuites>").problem


DISABLED = '<testcase name="a" status="notrun" result="suppressed"/>'
NODE = 'disabled="0" hostname="h"'
FLAKY = '<testcase name="a"><flakyFailure/></testcase>'


@pytest.mark.parametrize(
    "document",
    [
        suite('tests="1" errors="0" failures="0" skipped="0"', GOOD),
        # A testcase with several failures, counted once (GoogleTest) or as often (pytest, with subtests).
        suite('tests="1" failures="1"', '<testcase name="a"><failure/><failure/></testcase>'),
        suite('tests="1" failures="2"', '<testcase name="a"><failure/><failure/></testcase>'),
        # GoogleTest: disabled tests are not among the skipped.
        suite('tests="1" disabled="1" skipped="0"', DISABLED),
        # PyTorch: a try has a testcase of its own, which does not count.
        suite('tests="1"', '<testcase name="a"><rerun/></testcase>', GOOD),
        # Surefire: each try counts, or the last round alone.
        suite('tests="2" failures="1"', FLAKY),
        suite('tests="0" failures="0"', FLAKY, GOOD),
        # Suites that count their own testcases, all, or one for each element in them.
        suite('tests="1"', GOOD, f'<testsuite tests="2">{GOOD * 2}</testsuite>'),
        suite('tests="3"', GOOD, f'<testsuite tests="2">{GOOD * 2}</testsuite>'),
        suite(f'tests="2" {NODE}', GOOD, f'<testsuite tests="2">{GOOD * 2}</testsuite>'),
        suite(f'failures="1" {NODE}', f'<testsuite failures="2">{BAD * 2}</testsuite>'),
    ],
)
def test_counts_as_each_writer_counts_are_none(read, document):
    assert read(document).problem == ""


def test_allranks_counts_each_test_once_whatever_its_tries(read):
    properties = '<properties><property name="allranks.rank" value="0"/></properties>'
    assert "tests=2, but has tests=1" in read(suite('tests="2"', properties, FLAKY)).problem
    assert "tests=2, but has tests=1" in read(f'<testsuites name="allranks" tests="2">{FLAKY}</testsuites>').problem


SUITE = """
import unittest
import pytest

class TestParts(unittest.TestCase):
    def test_passing(self):
        for i in range(3):
            with self.subTest(i=i): pass
    def test_failing(self):
        for i in range(3):
            with self.subTest(i=i): assert i != 1
    def test_skipping(self):
        for i in range(3):
            with self.subTest(i=i): self.skipTest("not here")
@pytest.fixture
def broken():
    yield
    raise RuntimeError
def test_tears_down(broken): pass
def test_fails_and_tears_down(broken): assert 0
def test_skips_and_tears_down(broken): pytest.skip("x")
"""


@pytest.mark.parametrize("chosen", quick(1, ["passing", "failing", "skipping", "tears_down", ""]))
def test_pytests_own_counts_are_no_contradiction(tmp_path, chosen):
    (tmp_path / "test_real.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=rank-0.xml", "-k", chosen]
    subprocess.run([*command, "test_real.py"], cwd=tmp_path, capture_output=True, check=False)
    file = RankReader().read(tmp_path / "rank-0.xml")
    assert file.results
    assert file.problem == ""
    assert ("counts subtests" in file.note) == (chosen != "tears_down")


def test_of_rank_xml_of_allranks_no_testcase_may_be_absent(read):
    properties = '<properties><property name="allranks.rank" value="0"/></properties>'
    document = f'<testsuites name="pytest tests"><testsuite tests="2">{properties}{GOOD}</testsuite></testsuites>'
    assert "tests=2, but has tests=1" in read(document).problem


KINDS = st.lists(st.lists(st.sampled_from([kind for kind in ELEMENTS if kind]), max_size=1), max_size=6)


def counted(kinds):
    cases = "".join(
        f'<testcase name="{number}">{"".join(map(ELEMENTS.get, each))}</testcase>' for number, each in enumerate(kinds)
    )
    counts = Counter(kind for each in kinds for kind in each)
    return cases, {"tests": len(kinds), **{kind: counts[kind] for kind in ELEMENTS if kind}}


@given(kinds=KINDS, name=st.sampled_from(["tests", "failures", "errors", "skipped"]), more=st.integers(1, 9))
def test_right_counts_are_none_and_each_wrong_one_is_a_contradiction(tmp_path_factory, kinds, name, more):
    path = tmp_path_factory.mktemp("declared") / "rank-0.xml"
    cases, counts = counted(kinds)
    path.write_text(suite(" ".join(f'{kind}="{count}"' for kind, count in counts.items()), cases))
    assert RankReader().read(path).problem == ""
    more += counts["errors"]  # pytest may count as many twice
    path.write_text(suite(f'{name}="{counts[name] + more}"', cases))
    assert "contradicts itself" in RankReader().read(path).problem


@pytest.mark.parametrize(
    ("attribute", "element", "outcome", "message"),
    [
        ('status="run"', '<failure message="m"/>', "failed", "m"),
        ('status="notrun" result="suppressed"', '<skipped message="m"/>', "skipped", "m"),
        ('status="run" result="skipped"', '<skipped type="pytest.xfail" message="m"/>', "skipped", 'result="skipped"'),
        ('failure="no"', '<skipped message="m"/>', "failed", "no"),
        ('failure="no"', "<system-out>o</system-out>", "failed", "no"),
        ("", '<skipped message="s"/><failure message="m"/>', "failed", "m"),
        ("", "<failure/>", "failed", ""),
        ("", "<rerunFailure message='m'/>", "failed", "m; then no outcome"),
        ("", "<rerunError/>", "errored", "it failed; then no outcome"),
        ("", "<flakyError message='m'/><skipped message='s'/>", "errored", "m; then s"),
    ],
)
def test_of_several_outcomes_the_worst_counts(read, attribute, element, outcome, message):
    (result,) = read(suite("", f'<testcase name="a" {attribute}>{element}</testcase>')).results
    assert result.outcome.value == outcome
    assert message in result.message


@pytest.mark.parametrize(
    "root",
    [
        f'<testsuites tests="2"><testsuite tests="1">{GOOD}</testsuite><testsuite tests="0"/></testsuites>',
        f'<testsuites tests="1"><testsuite tests="2">{GOOD * 2}</testsuite></testsuites>',
        f'<testsuites skipped="1"><testsuite tests="1">{GOOD}</testsuite></testsuites>',
    ],
)
def test_only_a_suite_of_node_counts_one_for_each_element_in_it(read, root):
    assert "contradicts itself" in read(root).problem
