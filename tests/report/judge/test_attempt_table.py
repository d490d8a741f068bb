"""The table of attempts: every pair of states, and the rules that can be read off it."""

from itertools import product

import pytest

from allranks.report.judge.attempts import AFTER, State, before_whole_run

TABLE = """
before    | absent    not-run   skipped passed no-result failed
absent    | absent    not-run   skipped passed no-result failed
not-run   | no-result not-run   skipped passed no-result failed
skipped   | skipped   skipped   skipped passed no-result failed
passed      | passed      passed      skipped passed no-result failed
no-result | no-result no-result skipped passed no-result failed
failed       | failed       failed       failed     passed failed       failed
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
    assert AFTER[State.FAILED][new] is (State.PASSED if new is State.PASSED else State.FAILED)


@pytest.mark.parametrize("new", [State.ABSENT, State.NOT_RUN])
@pytest.mark.parametrize("before", [State.SKIPPED, State.PASSED, State.NO_RESULT, State.FAILED])
def test_an_attempt_that_did_not_run_a_test_changes_nothing(before, new):
    assert AFTER[before][new] is before


@pytest.mark.parametrize("new", [State.SKIPPED, State.PASSED, State.NO_RESULT, State.FAILED])
@pytest.mark.parametrize("before", [state for state in State if state is not State.FAILED])
def test_an_attempt_that_ran_a_test_overrides_all_but_a_failure(before, new):
    assert AFTER[before][new] is new


def test_a_test_that_no_attempt_reached_lacks_a_result():
    assert AFTER[State.NOT_RUN][State.ABSENT] is State.NO_RESULT
    assert AFTER[State.NOT_RUN][State.NOT_RUN] is State.NOT_RUN


@pytest.mark.parametrize("before", State)
def test_an_attempt_that_runs_the_whole_job_remembers_only_failures(before):
    assert before_whole_run(before) is (State.FAILED if before is State.FAILED else State.ABSENT)
