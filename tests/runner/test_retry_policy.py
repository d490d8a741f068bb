"""The retry policy, which identifies jobs by their ids."""

import pytest

from allranks.runner.retry_policy import WHOLE_JOB, JobSelection, RetryPolicy

SOME = JobSelection(tests=("a", "b"), base=1)
ONE = JobSelection(tests=("b",), base=2)


def test_a_retry_has_a_selection_and_a_message():
    policy = RetryPolicy(2, {})
    assert policy.selection("job") is WHOLE_JOB
    assert policy.retry("job", SOME) == "retrying 2 tests (1 of 2)"
    assert policy.selection("job") is SOME
    assert policy.retry("job", ONE) == "retrying 1 test (2 of 2)"
    assert policy.selection("job") is ONE


def test_used_up_retries_do_not_change_the_selection():
    policy = RetryPolicy(1, {})
    policy.retry("job", SOME)
    assert policy.retry("job", ONE) is None
    assert policy.selection("job") is SOME


def test_without_retries_there_is_none():
    assert RetryPolicy(0, {}).retry("job", SOME) is None


def test_each_job_has_its_own_retries():
    policy = RetryPolicy(1, {})
    assert policy.retry("job", SOME) == policy.retry("other", SOME) == "retrying 2 tests (1 of 1)"


def test_infrastructure_errors_do_not_use_up_retries_for_tests():
    policy = RetryPolicy(1, {})
    assert policy.retry("job", WHOLE_JOB, "infrastructure") == "retrying the whole job (1 of 1)"
    assert policy.retry("job", WHOLE_JOB, "infrastructure") is None
    assert policy.retry("job", SOME) == "retrying 2 tests (1 of 1)"


@pytest.mark.parametrize("kind", ["collection", "usage"])
def test_errors_that_every_attempt_repeats_are_not_retried(kind):
    assert RetryPolicy(9, {}).retry("job", WHOLE_JOB, kind) is None


def test_a_resumed_job_starts_with_its_selection():
    policy = RetryPolicy(1, {"job": SOME})
    assert policy.selection("job") is SOME
    assert policy.selection("other") is WHOLE_JOB
