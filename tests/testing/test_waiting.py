import pytest

from allranks.testing import shared_files
from allranks.testing.shared_files import wait_until


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only during pauses, and the list of the pauses."""
    pauses = []
    monkeypatch.setattr(shared_files.time, "monotonic", lambda: sum(pauses))
    monkeypatch.setattr(shared_files.time, "sleep", pauses.append)
    return pauses


def test_a_condition_that_is_already_true_is_not_waited_for(clock):
    assert wait_until(lambda: True, timeout=0)
    assert clock == []


def test_pauses_grow_with_the_wait_between_two_bounds(clock):
    assert not wait_until(lambda: False, timeout=10)
    assert clock[0] == 0.0002
    assert max(clock) == 0.005
    assert clock[:100] == sorted(clock[:100])
    assert sum(clock) == pytest.approx(10)


def test_the_condition_is_checked_again_when_the_time_is_up(clock):
    answers = iter([False, True])
    assert wait_until(lambda: next(answers), timeout=0)
    assert clock == []
