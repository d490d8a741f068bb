import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.outcomes import Outcome, Phase, overall, shorten


def phases(**outcomes):
    return [Phase(when=when, outcome=Outcome(outcome), duration=0.0) for when, outcome in outcomes.items()]


@pytest.mark.parametrize(
    ("given_phases", "when"),
    [
        (phases(setup="passed", call="passed", teardown="passed"), "call"),
        (phases(setup="passed", call="failed", teardown="errored"), "call"),
        (phases(setup="passed", call="passed", teardown="errored"), "teardown"),
        (phases(setup="errored", teardown="passed"), "setup"),
        (phases(setup="skipped", teardown="passed"), "setup"),
        (phases(setup="skipped", teardown="errored"), "teardown"),
        (phases(setup="passed", call="xfailed", teardown="passed"), "call"),
        (phases(setup="passed", teardown="passed"), "teardown"),
        (phases(setup="passed", call="skipped", teardown="skipped"), "call"),
    ],
)
def test_the_first_bad_phase_decides_then_the_first_notable_one(given_phases, when):
    assert overall(given_phases).when == when


def test_a_skip_in_the_tear_down_tells_that_the_test_has_passed():
    skipped = Phase(when="teardown", outcome=Outcome.SKIPPED, duration=0.0, message="no time", text="no time at all")
    decided = overall([*phases(setup="passed", call="passed"), skipped])
    assert decided.outcome is Outcome.SKIPPED
    assert decided.message == "the test passed, but its tear-down was skipped: no time"
    assert decided.text == "the test passed, but its tear-down was skipped: no time at all"
    assert overall([*phases(setup="passed"), skipped]) is skipped, "no test has run"


@given(st.text(max_size=300), st.integers(2, 100))
def test_a_short_text_stays_and_a_long_one_keeps_both_ends(text, limit):
    short = shorten(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        half = limit // 2
        assert short.startswith(text[:half])
        assert short.endswith(text[-half:])
        assert f" {len(text) - 2 * half} characters cut " in short
