"""Text that XML can hold and people can read."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.xml_text import cut, first_line, readable


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
    assert short.startswith(text[: limit // 2])
    assert short.endswith(text[len(text) - limit // 2 :])
    assert (short == text) is (len(text) <= limit)


def test_the_first_line_is_the_first_that_says_something():
    assert first_line("\n  \n  boom \nmore") == "boom"
    assert first_line(" \n") == ""
