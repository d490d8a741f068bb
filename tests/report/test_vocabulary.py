"""Times, GoogleTest's states, and elements and attributes that are unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import clean_cut
from allranks.report.vocabulary import ELEMENTS, UnknownError, checked, checked_property, seconds_of, stated_outcome


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (None, 0.0), ("0", 0.0), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e-05", 0.00001), ("2E+3", 2000.0),
        ("1,234.5", 1234.5), ("1,234,567.25", 1234567.25), ("0,5", 0.5), ("12,5", 12.5), ("1,02", 1.02),
        ("0,005", 0.005), ("1,2345", 1.2345), ("1234,567", 1234.567), ("1000000000", 1e9),
        ("-0.000", 0.0), ("-0.0", 0.0),
    ],
)  # fmt: skip
def test_a_time_has_a_point_a_decimal_comma_or_commas_between_thousands(said, seconds):
    assert seconds_of(said) == seconds


@pytest.mark.parametrize(
    "said",
    [
        "1,024", "999,999", "1,234,567", "12,34.5", "1234,567.8", "0,123.5", "1.234,5", "", " ", "1 s", "soon", "nan",
        "inf", "-1", "-0.5", "1_000", "1e400", "1e10", "0x10", "\u0661", "1,", ",5", "1\n",
    ],
)  # fmt: skip
def test_any_other_time_is_an_error_that_quotes_it(said):
    with pytest.raises(UnknownError, match="is not a number of seconds"):
        seconds_of(said)


@given(st.floats(0, 1e9))
def test_a_time_with_commas_between_thousands_is_the_one_without(seconds):
    assert seconds_of(f"{seconds:,.3f}") == pytest.approx(seconds, abs=0.001)


@pytest.mark.parametrize(
    ("attributes", "outcome"),
    [
        ({}, Outcome.PASSED),
        ({"status": "run"}, Outcome.PASSED),
        ({"status": "run", "result": "completed"}, Outcome.PASSED),
        ({"status": "run", "result": "skipped"}, Outcome.SKIPPED),
        ({"status": "notrun", "result": "suppressed"}, Outcome.SKIPPED),
        ({"status": "notrun", "name": "DISABLED_a"}, Outcome.SKIPPED),
        ({"status": "notrun", "name": "a", "classname": "All/DISABLED_Many"}, Outcome.SKIPPED),
        ({"failure": "2 == 3"}, Outcome.FAILED),
        ({"failure": ""}, Outcome.FAILED),
        ({"failure": "no", "status": "odd"}, Outcome.FAILED),
    ],
)
def test_attributes_of_a_testcase_state_an_outcome(attributes, outcome):
    assert stated_outcome(attributes)[0] is outcome


@pytest.mark.parametrize(
    "attributes",
    [
        {"status": "notrun"}, {"status": "notrun", "name": "NOT_DISABLED_a"}, {"result": "completed"}, {"status": ""},
        {"status": "notrun", "result": "completed"}, {"status": "notrun", "result": "skipped"}, {"status": "RUN"},
        {"status": "run", "result": "suppressed"}, {"status": "run", "result": "odd"}, {"status": "fail"},
        {"status": "disabled"},
    ],
)  # fmt: skip
def test_any_other_state_is_an_error_that_quotes_it(attributes):
    with pytest.raises(UnknownError) as caught:
        stated_outcome(attributes)
    assert all(
        f'{name}="{attributes[name]}"' in str(caught.value) for name in ("status", "result") if name in attributes
    )


@given(tag=st.sampled_from([*ELEMENTS, "x"]), parent=st.sampled_from([*ELEMENTS, "document"]), name=st.text(max_size=9))
def test_an_element_is_known_where_the_table_has_it_and_with_its_attributes_alone(tag, parent, name):
    known = tag in ELEMENTS and parent in ELEMENTS[tag].within and name in ELEMENTS[tag].attributes
    try:
        checked(tag, parent, {name: "v"}, frozenset())
    except UnknownError:
        assert not known
    else:
        assert known


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rank", ["x", "", "-1", "+1", "1.0", "01", " 1", "1" * 11]),
        ("world_size", ["x", "0", "-4", " 4", "4.0", "\u0664"]),
        ("outcome", ["passed"]),
        ("axis", ["2"]),
        ("bogus", ["1"]),
        ("", ["1"]),
    ],
)
def test_a_property_of_a_suite_that_allranks_never_writes_is_an_error(name, values):
    for value in values:
        with pytest.raises(UnknownError, match=f"a suite has the property allranks.{name} with value="):
            checked_property(f"allranks.{name}", value, is_of_case=False)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("outcome", ["bogus", "", "Passed"]),
        ("world_size", ["x", "0", "-1", "\u0664"]),
        ("at", ["x", "", "nan", "-1", "inf", "1e9", "1."]),
        ("skip_kind", ["bogus", ""]),
        ("skip_code", ["x", ""]),
        ("caused_by", ["x", "-1"]),
        ("consequence", ["0", "true"]),
        ("ranks", ["", "0", "0:exploded", "0:passed,1:passed", "x:passed"]),
        ("seconds", ["", "1 no", "1  2", "nan"]),
        ("texts", ["1@x+2", "1@2"]),
        ("rank", ["0"]),
        ("bogus", ["1"]),
    ],
)
def test_a_property_of_a_testcase_that_allranks_never_writes_is_an_error(name, values):
    for value in values:
        with pytest.raises(UnknownError, match=f"a testcase has the property allranks.{name} with value="):
            checked_property(f"allranks.{name}", value, is_of_case=True)


def test_the_properties_of_allranks_own_reports_are_known():
    for name, value in {"rank": "0", "world_size": "16384", "axis.mode": "\u00e9", "elapsed": "-0.100"}.items():
        checked_property(f"allranks.{name}", value, is_of_case=False)
    case = {
        "outcome": "timed_out", "at": "1700000000.000001", "ranks": "0-2,5:passed 3:failed", "seconds": "0.25 1e+03",
        "texts": "1@52+310 0,2@420+80", "earlier": "1:failed 2:ranks_disagree", "nodeid": "a::b[\n]",
    }  # fmt: skip
    for name, value in case.items():
        checked_property(f"allranks.{name}", value, is_of_case=True)
    checked_property("allranks.seconds", clean_cut("0.25 " * 20_000), is_of_case=True)
    checked_property("mine", "anything", is_of_case=True)


def test_the_remedy_for_an_attribute_names_the_one_command_that_can_allow_it():
    with pytest.raises(UnknownError) as caught:
        checked("testcase", "testsuite", {"owner": "me"}, frozenset())
    assert "merge the file with: allranks report --allow-attribute owner" in caught.value.remedy
