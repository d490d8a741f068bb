import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.outcomes import Outcome, Phase, overall, shorten


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


def test_the_message_of_a_skip_in_the_tear_down_says_that_the_test_passed():
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
        head, count, tail = re.fullmatch(r"(.*)…\s(\d+) characters cut\s…(.*)", short, re.DOTALL).groups()
        assert text.startswith(head.rstrip())
        assert text.endswith(tail.lstrip())
        assert len(text) - len(head) - len(tail) <= int(count) + limit
        assert len(short) <= limit + len(count) + len("\n…  characters cut …\n")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("the answer is wrong on every rank", "the … 26 characters cut … rank"),
        ("one\ntwo three four five six seven", "one\ntwo\n… 21 characters cut …\nseven"),
        ("unbreakable" * 4, "unbreaka … 28 characters cut … reakable"),
        ("a b c d e f g h i j k l m n o p q r", "a b c d … 21 characters cut … o p q r"),
        ("                  indented by a lot", " … 27 characters cut … by a lot"),
        ("at a/path/that/is/too/long/to/be/a/word.py:7", "at a/pat … 28 characters cut … ord.py:7"),
    ],
)
def test_a_long_text_is_cut_between_words(text, short):
    assert shorten(text, 16) == short
