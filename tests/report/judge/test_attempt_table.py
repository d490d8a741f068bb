"""The table of attempts: every pair of states, and the rules that can be read off it."""

from itertools import product

import pytest

from allranks.report.judge.attempts import AFTER, State, anew

TABLE = """
before    | absent    not-run   skipped good no-result bad
absent    | absent    not-run   skipped good no-result bad
not-run   | no-result not-run   skipped good no-result bad
skipped   | skipped   skipped   skipped good no-result bad
good      | good      good      skipped good no-result bad
no-result | no-result no-result skipped good no-result bad
bad       | bad       bad       bad     good bad       bad
"""


def listed() -> dict[tuple[State, State], State]:
    (_, _, *heads), *rows = ([word.replace("-", " ") for word in line.split()] for line in TABLE.strip().splitlines())
    return {
        (State(before), State(new)): State(after)
        for before, _, *afters in rows
        for new, after in zip(heads, afters, strict=True)
    }


def test_every_pair_of_states_has_the_result_that_is_listed():
    assert {(before, new): AFTER[before][new] for before, new in product(State, State)} == listed()


@pytest.mark.parametrize("new", State)
def test_a_bad_result_stands_until_the_test_executes_and_ends_well(new):
    assert AFTER[State.BAD][new] is (State.GOOD if new is State.GOOD else State.BAD)


@pytest.mark.parametrize("new", [State.ABSENT, State.NOT_RUN])
@pytest.mark.parametrize("before", [State.SKIPPED, State.GOOD, State.NO_RESULT, State.BAD])
def test_an_attempt_that_did_not_run_a_test_changes_nothing(before, new):
    assert AFTER[before][new] is before


@pytest.mark.parametrize("new", [State.SKIPPED, State.GOOD, State.NO_RESULT, State.BAD])
@pytest.mark.parametrize("before", [state for state in State if state is not State.BAD])
def test_an_attempt_that_ran_a_test_overrides_all_but_a_failure(before, new):
    assert AFTER[before][new] is new


def test_a_test_that_no_attempt_reached_lacks_a_result():
    assert AFTER[State.NOT_RUN][State.ABSENT] is State.NO_RESULT
    assert AFTER[State.NOT_RUN][State.NOT_RUN] is State.NOT_RUN


@pytest.mark.parametrize("before", State)
def test_an_attempt_that_runs_the_whole_job_remembers_only_failures(before):
    assert anew(before) is (State.BAD if before is State.BAD else State.ABSENT)
