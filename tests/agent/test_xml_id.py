"""Node ids in reports: legal in XML, and unique."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_lists import quick

from allranks.protocol.records import Collected
from allranks.protocol.xml_text import legal, xml_id

ODD = st.text(alphabet=st.sampled_from("#x01Fd8DEf23\0\x01\x1f\ud800\udfff\ufffe\uffffa:[]"), max_size=8)


@given(ODD, ODD)
def test_different_node_ids_stay_different(one, other):
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
def test_text_that_looks_like_an_escape_is_distinguished(nodeid, name):
    assert xml_id(nodeid) == name


@pytest.mark.parametrize("nodeid", ["t.py::a[#x]", "t.py::a[#xAB]", "t.py::a[#]", "t.py::a[0x01]", "t.py::a[é]", "#x2"])
def test_other_node_ids_stay_as_they_are(nodeid):
    assert xml_id(nodeid) == nodeid


@pytest.mark.parametrize("name", quick(1, ["test_\x01.py", "test_#x01.py"]))
def test_an_id_selects_one_of_two_tests_that_look_identical_in_reports(run_agent, name):
    files = dict.fromkeys(("test_\x01.py", "test_#x01.py"), "def test_x(): pass\n")
    agent = run_agent(files, world_size=1, only=(xml_id(f"suite/{name}::test_x"),))
    assert list(agent.all(Collected)[0].tests) == [f"suite/{name}::test_x"]
