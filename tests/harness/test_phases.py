import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.harness.outcome import Outcome, SkipKind
from allranks.harness.phases import Phase, overall, phase_of, shorten


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
    ],
)
def test_the_first_bad_phase_decides_then_the_first_notable_one(given_phases, when):
    assert overall(given_phases).when == when


def test_empty_fields_are_left_out_of_an_event():
    [phase] = phases(call="passed")
    assert phase.fields() == {"when": "call", "outcome": "passed", "duration": 0.0}


def report(outcome, when="call", longrepr=None):
    return pytest.TestReport("n", ("f", 1, "n"), {}, outcome, longrepr, when)


@pytest.mark.parametrize(("when", "outcome"), [("setup", "errored"), ("call", "failed"), ("teardown", "errored")])
def test_a_failure_outside_of_the_call_is_an_error(when, outcome):
    assert phase_of(report("failed", when, "why"), ValueError()).outcome == outcome


@pytest.mark.parametrize("code", [0, 1, 71, 90, "text", None, [], 76.5])
def test_an_exit_that_is_none_of_torchs_codes_is_a_crash(code):
    assert phase_of(report("failed", longrepr="why"), SystemExit(code)).outcome is Outcome.CRASHED


@pytest.mark.parametrize(("code", "kind"), [(72, SkipKind.ENVIRONMENT), (74, SkipKind.HARDWARE)])
def test_an_exit_with_one_of_torchs_codes_is_a_skip(code, kind):
    phase = phase_of(report("failed", longrepr="why"), SystemExit(code))
    assert (phase.outcome, phase.skip_kind, phase.skip_code) == (Outcome.SKIPPED, kind, code)


def test_the_message_is_the_first_line_that_says_something():
    assert phase_of(report("failed", longrepr="\n  \nfirst\nsecond"), ValueError()).message == "first"


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
