"""Tests that are disabled by a list of the suite or of PyTorch."""

import json
from datetime import date

import pytest

from allranks.agent.collect import suite_lists
from allranks.agent.collect.suite_lists import DISABLED, SLOW, WITH_SLOW, SuiteListError, read_disabled
from allranks.agent.collect.suite_lists import DISABLED_TESTS as FILE
from allranks.protocol.records import CollectionFailed

TODAY = date(2026, 1, 31)
ENTRY = """
[[test]]
test = "TestX::test_y"
reason = "it hangs now and then"
owner = "the store's team"
issue = "https://example.org/1"
until = 2026-01-31
"""


def test_an_entry_is_valid_until_its_last_day(tmp_path):
    (tmp_path / FILE).write_text(ENTRY)
    [entry] = read_disabled(tmp_path / FILE, TODAY)
    assert entry.reason == (
        "disabled until 2026-01-31: it hangs now and then (the store's team, https://example.org/1)"
    )


def test_an_expired_entry_is_an_error_that_names_the_owner(tmp_path):
    (tmp_path / FILE).write_text(ENTRY)
    with pytest.raises(SuiteListError, match=r"TestX::test_y was disabled until 2026-01-31.*\n.*the store's team"):
        read_disabled(tmp_path / FILE, date(2026, 2, 1))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("until = 2026-01-31", 'until = "soon"'),
        ("until = 2026-01-31", "until = 2026-01-31T12:00:00"),
        ('owner = "the store\'s team"\n', ""),
        ('reason = "it', 'reason = ""  # "it'),
        ("[[test]]", "[[tests]]"),
        ("[[test]]", "[test]"),
        ("[[test]]", "[[test"),
    ],
)
def test_a_list_with_wrong_content_is_an_error_that_shows_the_format(tmp_path, before, after):
    (tmp_path / FILE).write_text(ENTRY.replace(before, after))
    with pytest.raises(SuiteListError, match=r"cannot be read(?s:.*)owner, issue, and until \(a date\)"):
        read_disabled(tmp_path / FILE, TODAY)


@pytest.mark.parametrize(
    ("name", "nodeid", "is_named"),
    [
        ("TestX::test_y", "a/test_a.py::TestX::test_y", True),
        ("TestX::test_y", "a/test_a.py::TestX::test_y[1]", True),
        ("TestX::test_y", "a/test_a.py::TestXCPU::test_y", False),
        ("test_a.py::TestX::test_y", "a/test_a.py::TestX::test_y", True),
        ("test_b.py::TestX::test_y", "a/test_a.py::TestX::test_y", False),
        ("test_y", "a/test_a.py::test_y", True),
    ],
)
def test_an_entry_matches_a_test_like_an_expected_failure(name, nodeid, is_named):
    assert suite_lists.DisabledTest(test=name, reason="").matches(nodeid) is is_named


SUITE = {
    "test_a.py": """
        import unittest

        class TestX(unittest.TestCase):
            def test_y(self): ...
            def test_z(self): ...

        class TestXCPU(unittest.TestCase):
            def test_y(self): ...

        def test_w(): ...
    """
}


def test_tests_in_the_lists_of_the_suite_and_of_pytorch_do_not_run(run_agent, tmp_path):
    disabled, slow = tmp_path / "disabled.json", tmp_path / "slow.json"
    disabled.write_text(
        json.dumps({
            "test_y (__main__.TestX)": ["https://example.org/2", ["linux"]],
            "test_w (__main__.TestX)": ["https://example.org/3", []],
            "test_z (__main__.TestX)": ["https://example.org/4", ["windows"]],
        })
    )  # fmt: skip
    slow.write_text(json.dumps({"test_z (__main__.TestX)": 60.5}))
    own = ENTRY.replace("TestX::test_y", "test_w").replace("2026-01-31", "2999-12-31")
    agent = run_agent({**SUITE, FILE: own}, world_size=1, environment={DISABLED: str(disabled), SLOW: str(slow)})
    reasons = {end.nodeid.partition("::")[2]: end.message for end in agent.ends if end.outcome == "skipped"}
    assert reasons == {
        "TestX::test_y": f"disabled by {DISABLED}: https://example.org/2",
        "TestXCPU::test_y": f"disabled by {DISABLED}: https://example.org/2",
        "TestX::test_z": f"slow according to {SLOW}: set {WITH_SLOW}=1 to run it",
        "test_w": "disabled until 2999-12-31: it hangs now and then (the store's team, https://example.org/1)",
    }


def test_an_expired_entry_stops_the_suite(run_agent):
    agent = run_agent({**SUITE, FILE: ENTRY.replace("2026", "2020")}, world_size=1)
    assert "which has passed" in agent.all(CollectionFailed)[0].text


def test_slow_tests_run_if_asked_for(tmp_path):
    (tmp_path / "slow.json").write_text(json.dumps({"test_y (__main__.TestX)": 60.5}))
    assert not list(suite_lists._disabled_by_pytorch({SLOW: str(tmp_path / "slow.json"), WITH_SLOW: "1"}))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"test_y (__main__.TestX)": ["https://example.org/2"]}, r"needs \[issue, \[platforms"),
        ({"test_y (__main__.TestX)": "https://example.org/2"}, r"needs \[issue, \[platforms"),
        ({"test_y (__main__.TestX)": ["https://example.org/2", "linux"]}, r"needs \[issue, \[platforms"),
        ({"test_y (__main__.)": ["https://example.org/2", []]}, "would match tests of all classes"),
    ],
)
def test_an_incomplete_pytorch_entry_is_an_error(tmp_path, entry, message):
    (tmp_path / "list.json").write_text(json.dumps(entry))
    with pytest.raises(SuiteListError, match=message):
        list(suite_lists._disabled_by_pytorch({DISABLED: str(tmp_path / "list.json")}))


def test_a_pytorch_list_that_is_not_an_object_is_an_error(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(SuiteListError, match="is not a JSON object"):
        list(suite_lists._disabled_by_pytorch({DISABLED: str(tmp_path / "list.json")}))
