"""Names of tests in JUnit XML."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.xml_text import legal, split_nodeid


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
def test_legal_text_is_unchanged(text):
    assert legal(text) == text


@pytest.mark.parametrize(("character", "words"), [("\0", "#x00"), ("\x1b", "#x1B"), ("\ud800", "#xD800")])
def test_an_illegal_character_is_escaped(character, words):
    assert legal(f"a{character}b") == f"a{words}b"
