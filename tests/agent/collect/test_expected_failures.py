"""Expected failures of a suite: the format of the list, and the cells and versions of torch of an entry."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.collect.suite_lists import EXPECTED_FAILURES as FILE
from allranks.agent.collect.suite_lists import ExpectedFailure, SuiteListError, expect_failures, read_expected
from allranks.protocol.config import AgentConfig, TimeLimits

ENTRY = """
[[failure]]
test = "TestX::test_y"
torch = ["2"]
reason = "a port is shared"
issue = "https://example.org/1"
"""

SUITES = Path(__file__).parents[3] / "suites"


def config(**changes):
    limits = TimeLimits(process_group=1, test=1, job=1, peer_grace=1)
    cell = {"backend": "gloo", "world_size": 2, "gpu_count": 0, "init_method": "tcp"}
    fixed = {"cell": "c", "suite": "s", "paths": ("suite",), "isolation": "job", "limits": limits, "seed": 1}
    return AgentConfig(**{**fixed, **cell, **changes})


class Item:
    """The part of a pytest item that is used."""

    def __init__(self, nodeid):
        self.nodeid = nodeid
        self.marks = []

    def add_marker(self, mark):
        self.marks.append(mark)


@pytest.fixture
def code(tmp_path):
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / FILE).write_text(ENTRY)
    (tmp_path / "suite" / "test_a.py").touch()
    return tmp_path


@pytest.mark.parametrize("path", ["suite", "suite/test_a.py"])
def test_the_tests_of_the_file_are_expected_to_fail_and_no_others(code, path):
    named, other = Item("suite/test_a.py::TestX::test_y"), Item("suite/test_a.py::TestX::test_z")
    expect_failures([named, other], config(paths=(path,)), code)
    [mark] = named.marks
    assert mark.name == "xfail"
    assert mark.kwargs == {"reason": "a port is shared (https://example.org/1)", "strict": False}
    assert not other.marks


def test_each_folder_of_a_suite_has_its_own_file(code):
    (code / "other").mkdir()
    (code / "other" / FILE).write_text(ENTRY.replace("test_y", "test_z"))
    files = ("suite/test_a.py", "other/test_a.py")
    items = [Item(f"{file}::TestX::{test}") for file in files for test in ("test_y", "test_z")]
    expect_failures(items, config(paths=("suite/test_a.py", "other")), code)
    assert [len(item.marks) for item in items] == [1, 0, 0, 1]


def test_an_entry_applies_to_one_file_which_it_can_name(code):
    named, other = Item("suite/test_a.py::TestX::test_y"), Item("suite/test_b.py::TestX::test_y")
    with pytest.raises(SuiteListError, match=r"matches tests of suite/test_a.py and of suite/test_b.py; write"):
        expect_failures([named, other], config(), code)
    (code / "suite" / FILE).write_text(ENTRY.replace("TestX", "test_b.py::TestX"))
    named.marks = []
    expect_failures([named, other], config(), code)
    assert (len(named.marks), len(other.marks)) == (0, 1)


def test_a_suite_without_the_file_expects_none(tmp_path):
    item = Item("suite/test_a.py::TestX::test_y")
    expect_failures([item], config(), tmp_path)
    assert not item.marks


@pytest.mark.parametrize(
    ("versions", "when", "version", "applies"),
    [
        (["2.13"], {}, "2.13.0", True),
        (["2.13"], {}, "2.13", True),
        (["2.1"], {}, "2.13.0", False),
        (["2.12", "2.13.0"], {}, "2.13.0", True),
        ([], {}, "2.13.0", False),
        (["2.13"], {"init_method": "tcp"}, "2.13.0", True),
        (["2.13"], {"init_method": "file"}, "2.13.0", False),
        (["2.13"], {"init_method": "tcp", "world_size": 4}, "2.13.0", False),
    ],
)
def test_an_entry_applies_to_some_versions_and_cells(versions, when, version, applies):
    entry = ExpectedFailure(test="t", torch=tuple(versions), reason="r", issue="i", when=when)
    assert entry.applies_to(config(), version) == applies


@pytest.mark.parametrize(
    "content",
    [
        b"[[failure",
        b"\xff",
        b"[failure]",
        b"[[failures]]",
        b"failure = 1",
        b"failure = [1]",
        ENTRY.replace("reason", "because").encode(),
        ENTRY.replace('["2"]', '"2"').encode(),
        ENTRY.replace('["2"]', "[2]").encode(),
        ENTRY.replace('"a port is shared"', '""').encode(),
        (ENTRY + 'when = "tcp"').encode(),
        (ENTRY + "when = { rank = 1 }").encode(),
        (ENTRY + "when = { world_size = '2' }").encode(),
        (ENTRY + "when = { backend = ['gloo'] }").encode(),
        (ENTRY + "when = { gpu_count = true }").encode(),
        (ENTRY + "strict = true").encode(),
    ],
)
def test_a_file_with_wrong_content_is_an_error_that_shows_the_format(tmp_path, content):
    path = tmp_path / FILE
    path.write_bytes(content)
    with pytest.raises(SuiteListError, match=r"expected_failures.toml cannot be read: .*\n.*reason, issue"):
        read_expected(path)


@given(st.binary(max_size=60))
def test_any_file_is_read_or_rejected(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / FILE
    path.write_bytes(content)
    with contextlib.suppress(SuiteListError):
        assert isinstance(read_expected(path), list)


@pytest.mark.parametrize("path", sorted(SUITES.rglob(FILE)), ids=lambda path: path.parent.name)
def test_the_files_of_this_repository_can_be_read(path):
    assert read_expected(path)
