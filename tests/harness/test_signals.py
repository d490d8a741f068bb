import signal

import pytest

from allranks.harness.signals import ENDING, held_back, let_through


class Told(Exception):  # noqa: N818 - no error but an order
    pass


@pytest.fixture(params=sorted(ENDING))
def number(request):
    def raise_told(*_):
        raise Told

    before = signal.signal(request.param, raise_told)
    yield request.param
    signal.signal(request.param, before)


def test_an_ending_signal_waits_for_the_end_of_the_block(number):
    reached = []

    def signal_and_go_on():
        with held_back():
            signal.raise_signal(number)  # to this thread: a test runner may have others
            reached.append("the end")

    with pytest.raises(Told):
        signal_and_go_on()
    assert reached


def test_an_ending_signal_comes_where_it_is_let_through(number):
    with held_back():
        signal.raise_signal(number)  # to this thread: a test runner may have others
        with pytest.raises(Told), let_through():
            pass
        assert number in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_what_was_blocked_before_stays_blocked(number):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    with held_back(), let_through():
        pass
    assert number in signal.pthread_sigmask(signal.SIG_SETMASK, before)
