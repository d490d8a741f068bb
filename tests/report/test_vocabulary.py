"""Times, GoogleTest's states, and elements and attributes that are unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.outcomes import Outcome
from allranks.report.vocabulary import ELEMENTS, UnknownError, checked, outcome_said, seconds_of


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (None, 0.0), ("0", 0.0), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e-05", 0.00001), ("2E+3", 2000.0),
        ("1,234.5", 1234.5), ("1,234,567.25", 1234567.25), ("0,5", 0.5), ("12,5", 12.5), ("1,02", 1.02),
        ("0,005", 0.005), ("1,2345", 1.2345), ("1234,567", 1234.567), ("1000000000", 1e9),
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
    with pytest.raises(UnknownError, match="is no number of seconds"):
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
    assert outcome_said(attributes)[0] is outcome


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
        outcome_said(attributes)
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
