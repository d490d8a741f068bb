"""Real files of each writer whose JUnit XML is read, and the table of what they write in docs/other-junit.md.

``writers`` has what pytest 9 (also with ``junit_family = xunit1``, and with reruns as in PyTorch's conftest),
unittest-xml-reporting 4, Surefire 3.2.5, GoogleTest 1.12, jest-junit 17 and Node 20 wrote; stack frames and Java's
properties were removed.
"""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from allranks import junit
from allranks.errors import UsageError
from allranks.plugins.history.comparison import read_jobs_of
from allranks.report.rank_xml import RankReader
from allranks.report.status import Status
from allranks.report.vocabulary import ELEMENTS

WRITERS = Path(__file__).with_name("writers")
PAGE = Path(__file__).parents[2] / "docs" / "other-junit.md"
BAD = {Status.FAILED, Status.ERROR}

PYTESTS = {
    "passed": ["test_passes", "test_better", "test_records"],
    "failed": ["test_fails", "test_strict"],
    "errored": ["test_tears_down", "test_fails_and_tears_down", "test_sets_up"],
    "skipped": ["test_skips"],
    "xfailed": ["test_expected"],
}
OUTCOMES = {
    "pytest": PYTESTS,
    "pytest-xunit1": PYTESTS,
    "torch": {"passed": ["test_is_flaky", "test_passes"], "failed": ["test_fails"]},
    "xmlrunner": {
        "passed": ["test_adds"],
        "failed": ["test_fails", "test_parts (i=1)"],
        "errored": ["test_breaks", "test_unexpected"],
        "skipped": ["test_skips"],
        "xfailed": ["test_expected"],
    },
    "xmlrunner-set-up": {"errored": ["setUpClass (test_u.TestBroken)"]},
    "surefire": {
        "passed": ["adds"],
        "failed": ["fails", "isFlaky"],
        "errored": ["breaks", "isFlakyByError"],
        "skipped": ["assumes", "isSkipped"],
    },
    "surefire-reruns": {
        "passed": ["isFlakyByError", "adds", "isFlaky"],
        "failed": ["fails"],
        "errored": ["breaks"],
        "skipped": ["assumes", "isSkipped"],
    },
    "surefire-set-up": {"errored": [""]},
    "googletest": {
        "passed": ["Adds", "Works", "Is/0", "Is/1"],
        "failed": ["Fails"],
        "skipped": ["IsSkipped", "DISABLED_Later", "Never"],
    },
    "jest": {"passed": ["sums adds", " is flaky"], "failed": ["sums fails"], "skipped": ["sums is skipped"]},
    "node": {
        "passed": ["adds", "inside", "deep", "child"],
        "failed": ["fails", "fails to do", "fails inside", "bad child", "times out", "says"],
        "skipped": ["is skipped", "is to do"],
    },
    "node-nested": {"passed": ["good", "empty"], "failed": ["x", "y"], "skipped": ["s", "z", "skipped suite"]},
}
ERRORS = {
    "jest-broken": "a suite declares tests=3, but has tests=4",  # a test that is to do looks like a pass
    "googletest-list": "a testcase of GoogleTest has no status",
}


def test_each_file_of_a_writer_is_tested():
    assert {path.stem for path in WRITERS.glob("*.xml")} == {*OUTCOMES, *ERRORS}


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_outcomes_in_a_file_of_a_writer_are_read(name):
    file = RankReader().read(WRITERS / f"{name}.xml")
    assert (file.problem, file.note) == ("", "")
    found: dict[str, list[str]] = {}
    for result in file.results:
        found.setdefault(result.outcome.value, []).append(result.name)
    assert found == OUTCOMES[name]


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_command_reads_the_same_in_a_file_of_a_writer(name):
    path = WRITERS / f"{name}.xml"
    bad = [test for outcome in ("failed", "errored") for test in OUTCOMES[name].get(outcome, [])]
    loaded, streamed = junit.load(path).cases(), junit.stream(path)
    assert {case.name for case in loaded if case.is_bad} == {*bad}
    assert {case.name for case in streamed if case.is_bad} == {*bad}
    compared = [nodeid for job in read_jobs_of(path) for nodeid, test in job.tests.items() if test.status in BAD]
    assert len(compared) == len(bad)
    assert not junit.problem(path)


@pytest.mark.parametrize(("name", "says"), ERRORS.items())
def test_a_file_in_which_a_test_that_did_not_run_looks_like_a_pass_is_an_error(name, says):
    assert says in RankReader().read(WRITERS / f"{name}.xml").problem


def test_reruns_of_surefire_are_told():
    results = {result.name: result for result in RankReader().read(WRITERS / "surefire-reruns.xml").results}
    assert [each.outcome.value for each in results["breaks"].reruns] == ["errored", "errored"]
    assert [each.outcome.value for each in results["isFlaky"].reruns] == ["failed"]


def test_all_that_is_known_is_in_a_file_of_a_writer_or_written_by_torch_and_allranks():
    found = {tag: set() for tag in ELEMENTS}
    for path in WRITERS.glob("*.xml"):
        for element in ET.parse(path).iter():  # noqa: S314 - files of ours
            found[element.tag].update(re.sub("{.*}", "xsi:", name) for name in element.attrib)
    found["testsuite"].add("xmlns:xsi")  # which ElementTree hides
    missing = {
        tag: sorted(known.attributes - found[tag]) for tag, known in ELEMENTS.items() if known.attributes - found[tag]
    }
    assert missing == {
        "testsuites": ["random_seed", "skipped"],  # GoogleTest with --gtest_shuffle; allranks' junit.xml
        "testsuite": ["group"],  # Surefire with groups, by its schema
        "testcase": ["group", "url"],  # the same; pytest's schema xunit1
    }


def test_the_page_has_the_table_of_what_is_known():
    rows = re.findall(
        r"^\| ((?:`[\w-]+`(?:, )?)+) \| (.*?) \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    found = {
        tag: (frozenset(re.findall("`(.*?)`", attributes)), frozenset(re.findall("`(.*?)`", within)))
        for tags, within, attributes in rows
        for tag in re.findall("`(.*?)`", tags)
        if tag in ELEMENTS
    }
    assert found == {tag: (known.attributes, known.within - {"document"}) for tag, known in ELEMENTS.items()}


NAMES = ("testcase", "testsuite", "testsuites")


@pytest.mark.parametrize("tag", NAMES)
def test_a_suites_own_attribute_is_an_error_until_it_is_allowed(allranks, tmp_path, tag):
    said = {name: ' assay="5"' if name == tag else "" for name in NAMES}
    (tmp_path / "rank-0.xml").write_text(
        '<testsuites{testsuites}><testsuite{testsuite}><testcase name="a"{testcase}/></testsuite></testsuites>'.format(
            **said
        )
    )
    merge = ("report", str(tmp_path), "--world-size", "1")
    code, out, _ = allranks(*merge)
    assert code == 3
    assert f'<{tag}> has assay="5", which no known writer of JUnit XML uses' in " ".join(out.split())
    assert "allranks report --allow-attribute assay" in " ".join(out.split())
    code, out, _ = allranks(*merge, "--allow-attribute", "other", "--allow-attribute", "assay", "--json")
    assert (code, json.loads(out)["counts"]["passed"]) == (0, 1)


@pytest.mark.parametrize("inside", ['<failure assay="5"/>', "<assay/>"])
def test_no_option_allows_an_attribute_of_another_element_or_an_element(allranks, tmp_path, inside):
    (tmp_path / "rank-0.xml").write_text(f'<testsuite><testcase name="a">{inside}</testcase></testsuite>')
    assert allranks("report", str(tmp_path), "--world-size", "1", "--allow-attribute", "assay")[0] == 3


@pytest.mark.parametrize("read", [junit.load, lambda path: list(junit.stream(path)), junit.problem, read_jobs_of])
def test_an_unknown_attribute_is_an_error_of_usage_for_one_file(tmp_path, read):
    path = tmp_path / "r.xml"
    path.write_text('<testsuite>\n<testcase name="a" rc="1"/></testsuite>')
    with pytest.raises(UsageError, match=r'(?i)in line 2, <testcase> has rc="1"') as caught:
        read(path)
    assert caught.value.remedy


@pytest.mark.parametrize("outcome", ["failed", "crashed", "missing", "skipped", "xfailed"])
def test_an_outcome_that_only_allranks_property_states_is_read_alike_by_every_command(tmp_path, outcome):
    path = tmp_path / "rank-0.xml"
    said = f'<properties><property name="allranks.outcome" value="{outcome}"/></properties>'
    path.write_text(f'<testsuite><testcase name="a">{said}</testcase></testsuite>')
    [merged], [shown], [job] = RankReader().read(path).results, junit.stream(path), read_jobs_of(path)
    assert merged.outcome == outcome
    assert shown.is_bad == merged.outcome.is_bad
    assert job.tests["a"].status in (BAD if merged.outcome.is_bad else {Status.SKIPPED})
