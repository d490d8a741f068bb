"""Rates of failure with their intervals, and the names of repetitions."""

import pytest

from allranks.protocol.repetitions import (
    RepetitionTally,
    command_to_repeat,
    difference,
    full_rate,
    interval,
    name_of_repetition,
    options_of,
    reference_comparison,
    repeated_test,
    short_rate,
    summary_of,
)


@pytest.mark.parametrize(
    ("bad", "runs", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (1, 10, 0.0179, 0.4042),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (0, 0, 0.0, 1.0),
        (11, 10, 0.7225, 1.0),
    ],
)
def test_the_interval_is_wilsons(bad, runs, low, high):
    """Values of the table in Brown, Cai and DasGupta's form of it, computed by hand."""
    assert interval(bad, runs) == pytest.approx((low, high), abs=5e-5)


def test_a_rate_has_its_interval_beside_it():
    assert full_rate(3, 1000) == "3 of 1,000 repetitions failed: 0.3 % (95 % interval 0.1 to 0.88 %)"
    assert full_rate(1, 1).startswith("1 of 1 repetition failed: 100 % (95 % interval 20.7 to 100 %)")


def test_a_repetition_is_known_by_its_name():
    name = name_of_repetition("a.py::test[x (repetition 3)]", 517, 7)
    assert repeated_test(name) == "a.py::test[x (repetition 3)]"
    assert repeated_test("a.py::test[x (repetition 3)]") == "a.py::test[x (repetition 3)]"


@pytest.mark.parametrize("skew", ["heavy", "1:before:2:40ms,0:after:3:1.5ms"])
def test_the_command_of_a_repetition_draws_the_same_again(skew):
    told = RepetitionTally(command="stress", how="--skew light")
    command = command_to_repeat("a.py::test (repetition 517, seed 42)", ["cell", "--seed", "7"], told)
    assert command == ["allranks", "stress", "cell", "--seed", "7", "--replay", "42", "--", "a.py::test"]
    name = name_of_repetition("a.py::test", 2, 42, skew)
    assert command_to_repeat(name, [], told)[1:6] == ["stress", "--skew", skew, "--replay", "42"]
    assert repeated_test(name) == "a.py::test"


def test_the_command_of_a_test_runs_it_once():
    assert command_to_repeat("-a.py::test", ["cell"]) == ["allranks", "run", "cell", "--", "./-a.py::test"]
    assert command_to_repeat("", ["cell"]) == ["allranks", "run", "cell"]


def test_the_command_of_a_test_that_was_repeated_repeats_it_as_often_and_under_the_same():
    told = RepetitionTally(runs=40, command="stress", how=" ".join(options_of("heavy")))
    command = ["allranks", "stress", "cell", "--skew", "heavy", "--count", "40"]
    assert command_to_repeat("a.py::test", ["cell"], told) == [*command, "--", "a.py::test"]
    once = command_to_repeat("", ["cell"], RepetitionTally(command="stress"))
    assert once == ["allranks", "stress", "cell", "--count", "1"]


def test_a_summary_says_what_is_known_and_no_more():
    tally = RepetitionTally(runs=1000, median=0.0042, slowest=1.25, slowest_at=7)
    assert summary_of("t", tally) == (
        "t: 0 of 1,000 repetitions failed: 0 % (95 % interval 0 to 0.38 %); "
        "median 4.2 ms, slowest 1.25 s (repetition 7)"
    )
    bad = RepetitionTally(runs=9, bad=4, kept=2, first_bad=3, first_bad_after=1.5, left=1)
    told = summary_of("t", bad)
    assert (
        "the first failure was repetition 3, after 1.5 s; the report has 2 of the failures, and the others are similar"
        in told
    )
    assert told.endswith("; 1 process left behind and killed")


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ((9, 100), (8, 100), "no significant difference"),
        ((40, 100), (8, 100), "it fails more often under allranks, confidence over 99.9 %"),
        ((0, 100), (9, 90), "it fails more often under torch, confidence 99.8 %"),
        ((0, 3), (3, 3), "no significant difference"),
    ],
)
def test_rates_that_differ_under_torchs_runner_are_said_to_differ(ours, theirs, words):
    told = RepetitionTally(runs=ours[1], bad=ours[0], beside_runs=theirs[1], beside_bad=theirs[0], beside="python x.py")
    assert difference(told) == words
    assert reference_comparison(told).startswith(
        f"under torch's runner {theirs[0]} of {theirs[1]} repetitions failed: "
    )
    assert f"; {reference_comparison(told)}" in summary_of("t", told)


def test_a_test_that_torchs_runner_cannot_run_says_why():
    assert reference_comparison(RepetitionTally(runs=9, beside="it is skipped there")) == (
        "not repeated under torch's runner: it is skipped there"
    )


def test_a_rate_in_a_table_is_short():
    assert short_rate(3, 1000) == "3 of 1,000: 0.3 % (0.1 to 0.88 %)"
    assert short_rate(0, 0) == "0 of 0: 0 % (0 to 100 %)"
