"""Names of tests in JUnit XML."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.harness.rank_xml import legal, split_nodeid, xml_id


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


ODD = st.text(alphabet=st.sampled_from("#x01Fd8DEf23\0\x01\x1f\ud800\udfff\ufffe\uffffa:[]"), max_size=8)


@given(ODD, ODD)
def test_two_node_ids_stay_two(one, other):
    assert (xml_id(one) == xml_id(other)) == (one == other)
    assert legal(xml_id(one)) == xml_id(one)


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("t.py::a[\x01]", "t.py::a[#x01]"),
        ("t.py::a[#x01]", "t.py::a[#x23x01]"),
        ("t.py::a[#x23x01]", "t.py::a[#x23x23x01]"),
        ("t.py::a[##xD800]", "t.py::a[##x23xD800]"),
    ],
)
def test_what_looks_like_an_escaped_character_is_told_from_one(nodeid, name):
    assert xml_id(nodeid) == name


@pytest.mark.parametrize("nodeid", ["t.py::a[#x]", "t.py::a[#xAB]", "t.py::a[#]", "t.py::a[0x01]", "t.py::a[é]", "#x2"])
def test_other_node_ids_stay_as_they_are(nodeid):
    assert xml_id(nodeid) == nodeid
