"""What a run says of each red test: the end of the leading rank's traceback, and the command that runs it again."""

import html
import re
import shlex
from dataclasses import replace

import pytest

HELPERS = """
def outer(value):
    return check(value)


def check(value):
    assert value == 3, "not three"


def wait():
    import signal

    while True:
        signal.pause()
"""

SUITE = """
import os
import signal
import sys
import unittest

import pytest
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(__file__))

import helpers


def test_values(rank):
    numbers = [1, 2, 3 + rank]
    assert numbers == [1, 2, 3]


def test_helper():
    helpers.outer(4)


@pytest.fixture
def broken():
    raise ValueError("no such thing")


def test_fixture(broken):
    pass


@pytest.fixture
def bad_end():
    yield
    helpers.outer(7)


def test_teardown(bad_end):
    pass


def test_chain():
    try:
        helpers.outer(1)
    except AssertionError as error:
        raise RuntimeError("it failed") from error


def test_group():
    found = []
    for number in (1, 2):
        try:
            helpers.outer(number)
        except AssertionError as error:
            found.append(error)
    raise ExceptionGroup("several", found)


class TestOld(unittest.TestCase):
    def test_equal(self):
        self.assertEqual([1, 2], [1, 3])


def test_exit():
    raise SystemExit


def test_no_fixture(nowhere):
    pass


def test_crash(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


def test_hang(rank):
    if rank == 1:
        helpers.wait()
    dist.barrier()


def test_hostile():
    said = "</details><script>\\n# head\\n  File \\"/_pytest/x.py\\", line 1, in y\\n" + "x" * 100_000
    raise ValueError("\\x1b]0;owned\\x07\\x1b[2J\\x9b2J`````\\n" + said)
"""

SAID = {
    "test_values": ["test_tiny.py:17 in test_values", "assert numbers == [1, 2, 3]", "At index 2 diff: 4 != 3"],
    "test_helper": ["test_tiny.py:21 in test_helper", "helpers.py:7 in check", "value = 4"],
    "test_fixture": ["test_tiny.py:26 in broken", 'raise ValueError("no such thing")'],
    "test_teardown": ["test_tiny.py:36 in bad_end", "helpers.py:7 in check", "value = 7"],
    "test_chain": ["AssertionError: not three", "the direct cause of", "test_tiny.py:47 in test_chain"],
    "test_group": ["test_tiny.py:57 in test_group", "Exception 2 of the group:", "helpers.py:7 in check"],
    "test_equal": ["test_tiny.py:62 in test_equal", "First differing element 1:"],
    "test_exit": ["test_tiny.py:66 in test_exit", "raise SystemExit"],
    "test_no_fixture": ["fixture 'nowhere' not found"],
    "test_crash": ["test_tiny.py:75 in test_crash"],
    "test_hang": ["test_tiny.py:80 in test_hang", "helpers.py:14 in wait"],
    "test_hostile": ["test_tiny.py:86 in test_hostile", "</details><script>"],
}  # fmt: skip

ITEM = re.compile(
    r"^<details(?P<message>[^\n]*)\n\nFirst: .*?(?P<name>test[^ \n]*)\n(?P<rest>.*?)^</details>$",
    re.MULTILINE | re.DOTALL,
)
"""One failure of the summary: its test, and what is said of it."""


@pytest.mark.thorough
def test_each_red_test_has_its_traceback_and_its_command(launch, scratch, monkeypatch):
    repository = scratch(SUITE)
    (repository / "suite" / "helpers.py").write_text(HELPERS)
    done = launch(repository, "--engine", "process", "--seed", "7")
    assert done.code == 1, done.output
    summary = (done.folder / "summary.md").read_text()
    items = {
        item["name"].replace("\\", "").rpartition("::")[2]: html.unescape(item["message"]) + item["rest"]
        for item in ITEM.finditer(summary)
    }
    assert items.keys() == SAID.keys()
    for name, words in SAID.items():
        assert [word for word in words if word not in items[name]] == [], items[name]
        command = re.search(r"^allranks (run .*)$", items[name], re.MULTILINE)
        assert command, name
        assert command[1].startswith("run gloo-w2-g0-env --suite tiny --seed 7 -- suite/test_tiny.py::")
    for name in ("_pytest", "pluggy", "allranks/agent"):
        assert name not in summary.replace("/_pytest/x.py", "")
    assert not {"\x1b", "\x9b", "\x07"} & set(summary + done.output)

    shown = done.output.split("First failures:")[1]
    assert shown.count("    rerun: allranks run ") == 5
    assert "test_tiny.py:17 in test_values" in shown
    assert "and 2 more: see junit.xml" in shown
    assert {name: case._elem.get("line") for name, case in done.cases.items()}["test_helper"] == "21"

    # The command runs this test, on this cell.
    command = re.search(r"^    rerun: allranks run (.*test_values)$", shown, re.MULTILINE)
    monkeypatch.setenv("ALLRANKS_ENGINE", "process")
    again = replace(launch, run_id=f"{launch.run_id}-again")(repository, *shlex.split(command[1]))
    assert again.cases.keys() == {"test_values"}
