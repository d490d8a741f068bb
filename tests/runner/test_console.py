"""The choice of the console for a run."""

import io
import re

import pytest
from scripted_engine import failed

from allranks.protocol.records import Printed, TestSlow
from allranks.report.input_rule import InputRule
from allranks.report.merging import merge
from allranks.report.run_files import JobError
from allranks.runner.console import PlainConsole, console_for, is_streamed
from allranks.runner.listener import RunListener
from allranks.runner.progress import Tests
from allranks.runner.terminal import TerminalConsole

XTERM = {"TERM": "xterm-256color"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "arguments", "kind"),
    [
        (Terminal(), XTERM, [("-k", "s"), ()], TerminalConsole),
        (io.StringIO(), XTERM, [], PlainConsole),
        (Terminal(), {"TERM": "dumb"}, [], PlainConsole),
        (Terminal(), {}, [], PlainConsole),
        (Terminal(), XTERM, [(), ("-s",)], PlainConsole),
    ],
    ids=["terminal", "pipe", "dumb terminal", "no terminal is named", "output is streamed"],
)
def test_only_a_terminal_gets_a_table(lines, stream, environ, arguments, kind):
    with console_for(lines, arguments, environ, stream) as console:
        assert type(console) is kind


@pytest.mark.parametrize("detail", ["quiet", "verbose"])
def test_a_quiet_run_has_no_table(lines, detail):
    with console_for(lines, [], XTERM, Terminal(), detail) as console, console.watch(["cell/s"]) as live:
        assert live.detail == detail
        assert isinstance(console, TerminalConsole) == (detail == "verbose")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-s", True),
        ("-xs", True),
        ("-vsx -k a", True),
        ("--capture=no", True),
        ("--capture no", True),
        ("suite/test_a.py -p xdist --unknown -s", True),
        ("", False),
        ("-rs", False),
        ("-k s", False),
        ("-ks", False),
        ("--capture=sys", False),
        ("--stepwise -m slow", False),
        ("-k", False),
    ],
)
def test_streamed_output_is_detected_like_in_pytest(arguments, expected):
    assert is_streamed(arguments.split()) is expected


def test_a_plain_console_prints_all_lines(lines, tmp_path):
    (tmp_path / "rank-0.xml").write_text("<testsuites><testsuite/></testsuites>")
    with console_for(lines, environ={}) as console:
        with console.watch(["cell/s"]) as live:
            assert type(live) is RunListener
            live.set_state("cell/s", "preparing", (0,))
        console.annotate(merge(tmp_path, InputRule(world_size=1)))
    assert lines == []


@pytest.mark.parametrize("environ", [{}, {"GITHUB_ACTIONS": "true"}], ids=["a log", "a workflow's log"])
def test_a_hang_is_visible_in_a_log_while_it_lasts(lines, environ):
    slow = TestSlow(nodeid="t.py::test_hang", seconds=30.0, ended=(0, 1), locations=())
    with console_for(lines, environ=environ) as console, console.watch(["a/s"]) as live:
        live.take("a/s", slow)
        assert "a/s: slow: t.py::test_hang has been running for 30 s: ranks 0, 1 have ended" in lines


def test_control_sequences_of_tests_are_escaped(lines):
    for environ in ({}, {"GITHUB_ACTIONS": "true"}):
        with console_for(lines, environ=environ) as console, console.watch(["cell/s"]) as live:
            live.take("cell/s", failed("t[\x9b2J]", 1, "\x1b]0;owned\x07\x1b[2Jno \x1b[31mred"))
            live.take("cell/s", Printed(rank=0, line="10 %\r\x1b[Hdone\x08"))
            live.job_ended("cell/s", Tests(), 1.0, JobError(kind="agent", what="\x1b[2Jlost", why="\x07why"))
            console.say("\x1b[2Jrow\nrow")
    shown = "\n".join(lines)
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;]*m)", shown)
    for text in (
        "first failure: rank 1 failed in t[�2J]: no",
        "[rank 0] done�",
        "lost (1.0 s)",
        "    �why",
        "row\nrow",
    ):
        assert shown.count(text) == 2
