"""Counts and words that XML declares: what contradicts the testcases is an error, and no word is a silent pass."""

import subprocess
import sys
from collections import Counter

import pytest
from allranks.report.outcome_words import outcome_of
from hypothesis import given
from hypothesis import strategies as st
from stated_outcomes import STATED

from allranks import junit
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


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        (f"{GOOD}<failed/>", "<failed> is in no testcase"),
        (f"{GOOD}<test name='b'><crash/></test>", "<crash> is in no testcase"),
        ("<testcase name='a'><skipped><x result='fail'/></skipped></testcase>", "<x> is nested in <skipped>"),
        (f"<properties>{SIZE.format(2)}{SIZE.format(1)}</properties>{GOOD}", "allranks.world_size is 2 and 1"),
    ],
)
def test_a_statement_outside_of_testcases_that_says_otherwise_is_a_contradiction(read, inside, says):
    assert says in read(suite("", inside)).problem


def outcomes(file):
    return [result.outcome.value for result in file.results]


@pytest.mark.parametrize(("case", "is_bad"), STATED)
def test_all_readers_find_what_a_testcase_states(tmp_path, case, is_bad):
    path = tmp_path / "rank-0.xml"
    path.write_text(suite("", case))
    [merged] = RankReader().read(path).results
    [shown] = junit.stream(path)
    assert (merged.outcome.is_bad, shown.is_bad) == (is_bad, is_bad)


@pytest.mark.parametrize(
    ("attributes", "inside", "says"),
    [
        ('tests="5" errors="2"', GOOD, "tests=5, errors=2, and has tests=1, errors=0"),
        ('tests="5"', GOOD, "tests=5, and has tests=1"),
        ('tests="1"', GOOD * 2, "tests=1, and has tests=2"),
        ('tests="0"', GOOD, "tests=0, and has tests=1"),
        ('total="5"', GOOD, "total=5, and has total=1"),
        ('tests="-1"', GOOD, "tests=-1"),
        ('tests="many"', GOOD, "tests=many"),
        ('tests="1.5"', GOOD, "tests=1.5"),
        ('tests="nan"', GOOD, "tests=nan"),
        ('errors="1"', GOOD, "errors=1, and has errors=0"),
        ('failures="0"', BAD, "failures=0, and has failures=1"),
        ('failures="2"', BAD, "failures=2, and has failures=1"),
        ('skipped="1"', GOOD, "skipped=1, and has skipped=0"),
        ('skip="1"', GOOD, "skip=1"),
        ('skips="1"', GOOD, "skips=1"),
        ('status="failed"', GOOD, 'reports status="failed", but no test in it went wrong'),
        ('result="odd"', GOOD, 'reports result="odd"'),
        ('status="skipped"', GOOD, 'reports status="skipped", but tests in it ran'),
        ('testResult="failed"', GOOD, 'reports result="failed"'),
        ('timedout="true"', GOOD, 'reports timedout="true"'),
        ('Failures="1"', GOOD, "failures=1, and has failures=0"),
        ('failed="1"', GOOD, 'reports failed="yes", but no test in it went wrong'),
        ('success="false"', GOOD, 'reports success="false", but no test in it went wrong'),
        ('crashes="1"', GOOD, 'reports crashes="yes", but no test in it went wrong'),
        ('timeouts="2"', GOOD, 'reports timeouts="yes"'),
        ('numFailedTests="1"', GOOD, 'reports failed="yes"'),
        ('tests-failed="1"', GOOD, 'reports failed="yes"'),
        ('numberOfFailures="1"', GOOD, "failures=1, and has failures=0"),
        ('errors="1" failures="-1"', GOOD, "errors=1, failures=-1, and has errors=0"),
        ('interrupted="true"', GOOD, 'reports interrupted="true"'),
    ],
)  # fmt: skip
def test_what_a_suite_declares_and_does_not_have_is_a_contradiction(read, attributes, inside, says):
    file = read(suite(attributes, inside))
    assert file.problem.startswith("rank-0.xml contradicts itself: a suite ")
    assert says in file.problem
    assert len(file.results) == len({*inside.split("<testcase")}) - 1


def test_a_contradiction_is_an_error_of_the_run(tmp_path):
    (tmp_path / "rank-0.xml").write_text(suite('tests="2"', GOOD))
    assert merge(tmp_path, InputRule(world_size=1), environ={}).counts.errors == 1


@pytest.mark.parametrize("root", ['tests="2"', 'errors="1"', 'failures="1"'])
def test_the_counts_of_the_root_are_compared_too(read, root):
    assert "contradicts itself" in read(f"<testsuites {root}><testsuite>{GOOD}</testsuite></testsuites>").problem


@pytest.mark.parametrize(
    "document",
    [
        suite('tests="" errors=" "', GOOD),
        suite('failed="0" error="0" success="true" crashed="false" crashes="0" timeouts="0" timeout="60"', GOOD),
        suite('tests="1" errors="0" failures="0" skipped="0"', GOOD),
        suite('tests="1,000"', *(f'<testcase name="{number}"/>' for number in range(1000))),
        # GoogleTest: an element for each assertion that fails, and disabled tests that are not among the skipped.
        suite('tests="1" failures="1"', '<testcase name="a"><failure/><failure/></testcase>'),
        suite(
            'tests="1" disabled="1" skipped="0"', '<testcase name="a" status="notrun" result="suppressed"/>'
        ),
        # Surefire: each try counts.
        suite('tests="2" failures="1"', '<testcase name="a"><flakyFailure/></testcase>'),
        # Suites with and without what is in suites within them.
        suite('tests="3"', GOOD, f'<testsuite tests="2">{GOOD * 2}</testsuite>'),
        suite('tests="1"', GOOD, f'<testsuite tests="2">{GOOD * 2}</testsuite>'),
    ],
)  # fmt: skip
def test_counts_as_other_writers_count_are_none(read, document):
    assert read(document).problem == ""


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


@pytest.mark.parametrize("chosen", ["passing", "failing", "skipping", "tears_down", ""])
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
    assert "tests=2, and has tests=1" in read(document).problem


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
    more += counts["errors"] + counts["failures"]  # pytest may count as many twice, ESLint failures as errors
    path.write_text(suite(f'{name}="{counts[name] + more}"', cases))
    assert "contradicts itself" in RankReader().read(path).problem


@pytest.mark.parametrize(
    ("attributes", "outcome"),
    [
        ('status="run" result="completed"', "passed"),
        ('status="notrun" result="suppressed"', "skipped"),
        ('status="NOT_RUN"', "skipped"),
        ('status="not run"', "skipped"),
        ('status="disabled"', "skipped"),
        ('status="fail"', "failed"),
        ('status="failed"', "failed"),
        ('result="Failure"', "failed"),
        ('result="suppressed"', "skipped"),
        ('outcome="Failed"', "failed"),
        ('outcome="Timeout"', "timed_out"),
        ('outcome="NotExecuted"', "skipped"),
        ('outcome="PassedButRunAborted"', "errored"),
        ('status="crashed"', "crashed"),
        ('status="error"', "errored"),
        ('state="xfail"', "xfailed"),
        ('executed="False"', "skipped"),
        ('executed="True" success="False"', "failed"),
        ('executed="True" success="True"', "passed"),
        ('disabled="true"', "skipped"),
        ('skipped="0"', "passed"),
        ('status=""', "passed"),
        ('status="PASS"', "passed"),
        ('status="?"', "errored"),
        ('status="frobbed"', "errored"),
        ('success="perhaps"', "errored"),
        ('status="run" result="odd"', "errored"),
        ('file="t.py" line="3" assertions="2"', "passed"),
        ('STATUS="FAILED"', "failed"),
        ('x:status="failed" xmlns:x="urn:x"', "failed"),
        ('conclusion="failure"', "failed"),
        ('passed="false"', "failed"),
        ('failed="true"', "failed"),
        ('errors="1" failures="0"', "errored"),
        ('failures="2"', "failed"),
        ('errors="0" failures="0" passed="3" failed="0"', "passed"),
        ('passed="0"', "passed"),
    ],
)
def test_words_in_attributes_are_outcomes_and_an_unknown_one_is_no_pass(read, attributes, outcome):
    file = read(suite("", f'<testcase classname="t" name="a" time="1" {attributes}/>'))
    assert outcomes(file) == [outcome]
    assert file.results[0].duration == 1.0


def test_an_unknown_word_is_named(read):
    file = read(suite("", '<testcase name="a" status="frobbed"/>'))
    assert 'status="frobbed"' in file.results[0].message


@pytest.mark.parametrize(
    ("attribute", "element", "outcome", "message"),
    [
        ('status="run"', '<failure message="m"/>', "failed", "m"),
        ('status="error"', '<failure message="m"/>', "failed", "m"),
        ('status="notrun"', '<skipped message="m"/>', "skipped", "m"),
        ('status="skipped"', '<skipped type="pytest.xfail" message="m"/>', "skipped", 'status="skipped"'),
        ('status="failed"', '<skipped message="m"/>', "failed", 'status="failed"'),
        ('status="failed"', "<system-out>o</system-out>", "failed", 'status="failed"'),
    ],
)
def test_of_a_word_and_an_element_the_worse_counts(read, attribute, element, outcome, message):
    (result,) = read(suite("", f'<testcase name="a" {attribute}>{element}</testcase>')).results
    assert (result.outcome.value, result.message) == (outcome, message)


def test_a_word_that_allranks_property_contradicts_counts(read):
    said = '<properties><property name="allranks.outcome" value="passed"/></properties>'
    assert outcomes(read(suite("", f'<testcase name="a" status="failed">{said}</testcase>'))) == ["failed"]


@pytest.mark.parametrize(
    ("element", "outcome"),
    [
        ("<Failure/>", "failed"),
        ("<j:failure xmlns:j='urn:x'/>", "failed"),
        ("<timeout/>", "timed_out"),
        ("<ignored/>", "skipped"),
        ("<not-run/>", "skipped"),
        ("<passed/>", "passed"),
        ("<exception/>", "errored"),
        ('<failure type="pytest.xfail"/>', "failed"),
        ('<skipped type="pytest.xfail"/>', "xfailed"),
        ("<whatever/>", "passed"),
    ],
)
def test_elements_that_are_named_otherwise_are_outcomes(read, element, outcome):
    assert outcomes(read(suite("", f'<testcase name="a">{element}</testcase>'))) == [outcome]


@pytest.mark.parametrize("word", ["weird", "FAILED", ""])
def test_an_unknown_outcome_in_allranks_property_is_no_pass(read, word):
    said = f'<properties><property name="allranks.outcome" value="{word}"/></properties>'
    assert outcomes(read(suite("", f'<testcase name="a">{said}</testcase>'))) == ["errored"]


@pytest.mark.parametrize("times", [1, 3])
def test_a_failure_in_a_skip_is_a_contradiction(read, times):
    case = '<testcase classname="t" name="a" time="1"><skipped><failure/></skipped></testcase>'
    assert "<failure> is nested in <skipped>" in read(suite("", case * times)).problem


def test_a_failure_that_a_test_has_printed_is_none(read):
    assert not read(suite("", '<testcase name="a"><system-out><failure/></system-out></testcase>')).problem


@given(st.text(max_size=20))
def test_every_word_is_an_outcome_or_unknown(word):
    assert outcome_of(word) is None or outcome_of(word) is outcome_of(f" {word.upper()}-")


def test_a_testcase_in_another_one_hides_no_failure(read):
    case = f'<testcase name="x"><failure message="m"/>{GOOD}</testcase>'
    assert "a testcase is nested in a testcase" in read(suite("", case)).problem


@pytest.mark.parametrize("mark", ['hostname="tbd"', 'doctest_version="2.4.11"'], ids=["Catch2", "doctest"])
def test_some_writers_count_assertions(read, mark):
    assert not read(suite(f'tests="3" failures="0" {mark}', GOOD)).problem
    assert read(suite(f'tests="3" failures="1" {mark}', GOOD)).problem


@pytest.mark.parametrize(
    ("counts", "is_right"),
    [
        ('failures="0" errors="1"', True),  # Mocha
        ('errors="1"', True),  # ESLint
        ('failures="0" errors="2"', False),
        ('failures="0" errors="0"', False),
    ],
)
def test_failures_may_be_counted_as_errors(read, counts, is_right):
    assert bool(read(suite(f'tests="2" {counts}', GOOD, BAD)).problem) != is_right


@pytest.mark.parametrize(("disabled", "is_right"), [(1, True), (2, False)])
def test_ginkgo_counts_pending_tests_as_disabled(read, disabled, is_right):
    pending = '<testcase name="p" status="pending"><skipped/></testcase>'
    skipped = '<testcase name="s" status="skipped"><skipped/></testcase>'
    assert bool(read(suite(f'skipped="1" disabled="{disabled}"', pending, skipped)).problem) != is_right
