import json
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.harness.outcome import Outcome
from allranks.harness.rank_xml import legal, rank_tests, ranks_with_events, split_nodeid, write_rank_xml

NODEID = "suite/test_a.py::test_x"


def phase(when, outcome="passed", **fields):
    return {"event": "phase", "at": 5.0, "nodeid": NODEID, "when": when, "outcome": outcome, "duration": 0.5, **fields}


def ended(outcome, **fields):
    return {"event": "rank_ended", "at": 6.0, "nodeid": NODEID, "outcome": outcome, "message": "", "text": "", **fields}


STARTED = {"event": "test_started", "at": 4.0, "nodeid": NODEID}
FINISHED = {"event": "test_finished", "at": 6.0, "nodeid": NODEID, "outcome": "passed"}
SETUP, CALL, TEARDOWN = phase("setup"), phase("call"), phase("teardown")


def write_events(folder, name, events):
    (folder / f"events-{name}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.fixture
def render(tmp_path):
    """The document for some events of rank 0 and of the agent."""

    def write_and_parse(events, journal=()):
        write_events(tmp_path, "0", events)
        write_events(tmp_path, "agent", journal)
        write_rank_xml(tmp_path, 0, cell="c", suite="s", world_size=2)
        return ET.parse(tmp_path / "rank-0.xml").getroot()  # noqa: S314 - our own

    return write_and_parse


def properties(case):
    return {entry.get("name"): entry.get("value") for entry in case.iter("property")}


@pytest.mark.parametrize(
    ("events", "outcome", "element"),
    [
        ([SETUP, CALL, TEARDOWN, FINISHED], "passed", None),
        ([SETUP, phase("call", "failed"), TEARDOWN, FINISHED], "failed", "failure"),
        ([phase("setup", "errored"), TEARDOWN, FINISHED], "errored", "error"),
        ([SETUP, phase("call", "failed"), phase("teardown", "errored"), FINISHED], "failed", "failure"),
        ([SETUP, CALL, phase("teardown", "errored"), FINISHED], "errored", "error"),
        ([phase("setup", "skipped"), TEARDOWN, FINISHED], "skipped", "skipped"),
        ([SETUP, phase("call", "xfailed"), TEARDOWN, FINISHED], "xfailed", "skipped"),
        ([SETUP, phase("call", "xpassed"), TEARDOWN, FINISHED], "xpassed", None),
        ([SETUP], "missing", "error"),
        ([], "missing", "error"),
        ([SETUP, CALL, TEARDOWN], "passed", None),
        ([SETUP, ended("crashed")], "crashed", "error"),
        ([SETUP, ended("aborted", caused_by=1)], "aborted", "error"),
        ([SETUP, CALL, TEARDOWN, FINISHED, ended("timed_out")], "timed_out", "error"),
        ([SETUP, CALL, TEARDOWN, FINISHED, ended("aborted")], "passed", None),
        ([SETUP, phase("call", "failed"), ended("aborted")], "failed", "failure"),
        ([SETUP, ended("skipped", skip_code=77, skip_kind="hardware")], "skipped", "skipped"),
    ],
)
def test_the_events_of_a_test_fold_into_one_outcome(render, events, outcome, element):
    [case] = render([STARTED, *events]).iter("testcase")
    assert properties(case)["allranks.outcome"] == outcome
    assert [child.tag for child in case if child.tag != "properties"] == ([element] if element else [])


def test_the_suite_counts_what_it_holds(render):
    events = [STARTED, SETUP, phase("call", "failed"), TEARDOWN, FINISHED, {**STARTED, "nodeid": "suite/b.py::test_b"}]
    suite = render(events).find("testsuite")
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "2", "failures": "1", "errors": "1", "skipped": "0", "time": "1.500"}


def test_the_suite_says_whose_it_is(render):
    entries = properties(render([]).find("testsuite/properties"))
    assert entries == {
        "allranks.rank": "0",
        "allranks.world_size": "2",
        "allranks.cell": "c",
        "allranks.suite": "s",
    }


def test_a_case_keeps_when_it_arrived_and_what_decided_it(render):
    arrived = {"event": "arrived", "at": 7.25, "nodeid": NODEID, "rank": 0, "outcome": "skipped", "consequence": True}
    peer = {**arrived, "rank": 1, "at": 9.0}
    skip = phase("call", "skipped", skip_kind="environment", skip_code=76, message="no NCCL")
    [case] = render([STARTED, SETUP, skip, TEARDOWN, FINISHED], [arrived, peer]).iter("testcase")
    assert properties(case) == {
        "allranks.nodeid": NODEID,
        "allranks.outcome": "skipped",
        "allranks.at": "7.250000",
        "allranks.consequence": "1",
        "allranks.skip_kind": "environment",
        "allranks.skip_code": "76",
        "allranks.phase": "call",
    }


def test_output_is_kept_for_all_but_a_pass(render):
    loud = {"stdout": "said", "stderr": "warned"}
    [passed] = render([STARTED, phase("call", **loud), TEARDOWN, FINISHED]).iter("testcase")
    assert passed.find("system-out") is None
    [failed] = render([STARTED, phase("call", "failed", **loud), TEARDOWN, FINISHED]).iter("testcase")
    assert (failed.findtext("system-out"), failed.findtext("system-err")) == ("said", "warned")


def test_output_that_the_agent_read_counts_and_goes_with_what_did_not_pass(render):
    output = {"event": "output", "nodeid": NODEID, "stdout": "said", "stderr": "warned"}
    [crashed] = render([STARTED, SETUP, ended("crashed"), output]).iter("testcase")
    assert (crashed.findtext("system-out"), crashed.findtext("system-err")) == ("said", "warned")
    [passed] = render([STARTED, SETUP, CALL, TEARDOWN, FINISHED, output]).iter("testcase")
    assert passed.find("system-out") is None


def test_a_case_has_the_size_of_the_world_that_it_ran_in(render):
    [case] = render([{**STARTED, "world_size": 4}, SETUP, CALL, TEARDOWN, FINISHED]).iter("testcase")
    assert properties(case)["allranks.world_size"] == "4"


def test_ranks_beyond_the_jobs_world_are_found_by_their_events(tmp_path):
    for name in ("events-0.jsonl", "events-10.jsonl", "events-2.jsonl", "events-agent.jsonl", "rank-5.xml"):
        (tmp_path / name).touch()
    assert ranks_with_events(tmp_path) == [0, 2, 10]


def test_tests_that_overlapped_are_told_in_the_order_in_which_they_began(tmp_path):
    def events(name, began):
        return [{"event": kind, "at": began + nr, "nodeid": name} for nr, kind in enumerate(("test_started", "phase"))]

    write_events(tmp_path, "0", events("first", 1.0) + events("fourth", 9.0))
    for lane, (name, began) in {"lane-1": ("third", 4.0), "lane-2": ("second", 3.5)}.items():
        (tmp_path / lane).mkdir()
        write_events(tmp_path / lane, "0", events(name, began))
    assert [test.nodeid for test in rank_tests(tmp_path, 0)] == ["first", "second", "third", "fourth"]


def test_ranks_that_only_a_lane_had_are_found(tmp_path):
    (tmp_path / "lane-1").mkdir()
    write_events(tmp_path / "lane-1", "3", [])
    write_events(tmp_path, "agent", [])
    assert ranks_with_events(tmp_path) == [3]


def test_no_events_are_no_tests(render):
    assert render([]).find("testsuite").get("tests") == "0"


def test_a_rank_that_never_was_has_no_tests(tmp_path):
    assert rank_tests(tmp_path, 3) == []


@pytest.mark.parametrize(
    ("nodeid", "classname", "name"),
    [
        ("pkg/test_a.py::test_b", "pkg.test_a", "test_b"),
        ("pkg/test_a.py::TestB::test_c", "pkg.test_a.TestB", "test_c"),
        ("test_a.py::test_b[x::y]", "test_a", "test_b[x::y]"),
        ("test_a.py::test_b[[]", "test_a", "test_b[[]"),
        ("test_a.py::TestB::test_c[a/b.py::d]", "test_a.TestB", "test_c[a/b.py::d]"),
        ("pkg/test_a.py", "", "pkg.test_a"),
    ],
)
def test_class_and_name_are_those_of_pytests_own_report(nodeid, classname, name):
    assert split_nodeid(nodeid) == (classname, name)


@given(st.text())
def test_every_text_is_legal_xml_and_reads_back(text):
    element = ET.Element("x", message=legal(text))
    element.text = legal(text)
    again = ET.fromstring(ET.tostring(element))  # noqa: S314 - our own
    assert again.get("message") == legal(text)
    # XML reads every line end as one line feed.
    assert (again.text or "") == legal(text).replace("\r\n", "\n").replace("\r", "\n")


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0xD7FF)))
def test_a_text_that_is_legal_stays_as_it_is(text):
    assert legal(text) == text


@pytest.mark.parametrize(("character", "words"), [("\0", "#x00"), ("\x1b", "#x1B"), ("\ud800", "#xD800")])
def test_an_illegal_character_is_written_by_its_number(character, words):
    assert legal(f"a{character}b") == f"a{words}b"


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_can_be_rendered(render, outcome):
    [case] = render([STARTED, phase("call", outcome, text="\0", message="\x1b\n")]).iter("testcase")
    assert case.get("name") == "test_x"
