"""Text that XML can hold and people can read."""

import os
import re
import subprocess
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.xml_text import clipped, command, cut, first_line, for_log, for_terminal, readable, two_ends


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=50))
def test_any_text_can_be_written_as_xml_and_parsed_again(text: str):
    element = ET.Element("x", said=readable(text))
    element.text = readable(text)
    parsed = ET.fromstring(ET.tostring(element, encoding="utf-8"))  # noqa: S314 - our own document
    # A parser turns every end of a line into a line feed (XML 1.0, section 2.11).
    assert (parsed.text or "") == readable(text).replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;https://example.org\x07link\x1b]8;;\x07", "link"),
        ("an unfinished \x1b]0;title\nhides no further line", "an unfinished \nhides no further line"),
        ("nul\x00", "nul#x00"),
        ("lone \ud800 surrogate", "lone #xD800 surrogate"),
        ("tab\tnewline\n", "tab\tnewline\n"),
        ("émoji 🎉", "émoji 🎉"),
    ],
)
def test_what_a_terminal_or_xml_chokes_on_is_made_harmless(raw: str, clean: str):
    assert readable(raw) == clean


@given(st.text(max_size=300), st.integers(1, 100))
def test_a_cut_keeps_both_ends(text: str, limit: int):
    short = cut(text, limit)
    assert (short == text) is (len(text) <= limit)
    if short != text:
        head, tail = re.split(r"\n\[\.\.\. \d+ characters cut here;[^]]*\]\n", short, maxsplit=1)
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) <= limit


WORDS = st.lists(st.text("abcé🎉", min_size=1, max_size=32), min_size=1, max_size=60)


@given(WORDS, st.integers(1, 200), st.sampled_from(" \n\t"))
def test_no_cut_divides_a_word(words: list[str], limit: int, gap: str):
    text = gap.join(words)
    head, tail = two_ends(text, min(limit, len(text)))
    start = clipped(text, limit)
    assert len(head) + len(tail) <= limit
    assert len(start) <= limit
    for part in (head, tail, start.removesuffix("…")):
        assert set(part.split()) <= set(words)


@given(st.text("x/:", min_size=33, max_size=200), st.integers(2, 30))
def test_a_text_without_spaces_is_cut_all_the_same(text: str, limit: int):
    assert clipped(text, limit) == f"{text[: limit - 1]}…"
    assert two_ends(text, limit) == (text[: limit // 2], text[len(text) - (limit - limit // 2) :])


def test_a_cut_takes_no_longer_for_a_longer_text():
    for huge in ("x" * 50_000_000, "word " * 10_000_000, " " * 50_000_000):
        assert all(len(short) < 1_200 for short in (clipped(huge, 1_000), cut(huge, 1_000)))


def test_the_first_line_is_the_first_that_says_something():
    assert first_line("\n  \n  boom \nmore") == "boom"
    assert first_line(" \n") == ""


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("two\n\tlines", "two\n\tlines"),
        ("\x1b[31mred\x1b[0m and \x1b[1mbold\x1b[m", "\x1b[31mred\x1b[0m and \x1b[1mbold\x1b[m"),
        ("\x1b[31mred to the end", "\x1b[31mred to the end\x1b[0m"),
        ("\x1b[2J\x1b[Hcleared\x1b]0;title\x07", "cleared"),
        ("\x9b2J \x07 \x08 \x1b \u202e", "�2J � � � �"),
        ("mine\ryours", "mine yours"),
        ("\x1b[31\x1b[2Jm", "�[31m"),
        ("émoji 🎉", "émoji 🎉"),
    ],
)
def test_a_terminal_is_shown_colours_and_obeys_nothing_else(raw: str, shown: str):
    assert for_terminal(raw) == shown


@pytest.mark.parametrize(
    "word", ["t.py::a[x y]", "it's $HOME `x`", "a\nb", "\x1b[2J", "back\\slash\t'", "ü\u202e", "-p"]
)
def test_a_command_is_what_bash_reads_and_no_terminal_obeys(word: str):
    said = command(["printf", "%s", word])
    assert said.isprintable()
    run = subprocess.run(
        ["/bin/bash", "-c", said], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert run.stdout.decode() == word


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cpu on x\n::add-mask::y ##[error]z", "cpu on x ::add-mask::y ## [error]z"),
        ("a\r##vso[task.complete]", "a ## vso[task.complete]"),
        ("\x1b[31mred", "�[31mred"),
        ("## plain [x]", "## plain [x]"),
        ("###[##[x", "### [## [x"),
    ],
)
def test_a_line_of_a_log_is_one_line_that_no_service_obeys(text, line):
    assert for_log(text) == line
