import os
import signal
import threading
import time

import pytest

from allranks.harness.signals import ENDING, held_back, let_through, raising


class Told(Exception):  # noqa: N818 - no error but an order
    pass


@pytest.fixture(params=sorted(ENDING))
def number(request):
    before = signal.signal(request.param, raising(Told))
    yield request.param
    signal.signal(request.param, before)


def test_an_ending_signal_waits_for_the_end_of_the_block(number):
    reached = []

    def signal_and_go_on():
        with held_back():
            signal.raise_signal(number)
            reached.append("the end")

    with pytest.raises(Told):
        signal_and_go_on()
    assert reached


def test_an_ending_signal_comes_where_it_is_let_through(number):
    with held_back():
        signal.raise_signal(number)
        with pytest.raises(Told), let_through():
            pass
        assert number in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_what_was_blocked_before_stays_blocked(number):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    with held_back(), let_through():
        pass
    assert number in signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def idle_thread():
    """A thread that holds no signal back, as a library may start one."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread
    over.set()
    thread.join()


def test_a_signal_that_another_thread_takes_is_held_back_all_the_same(number, idle_thread):
    reached = []
    with held_back():
        signal.pthread_kill(idle_thread.ident, number)
        time.sleep(0.1)  # here Python runs the handler of what any thread was told
        reached.append("the end")
        with pytest.raises(Told), let_through():
            pass
    assert reached


@pytest.mark.usefixtures("idle_thread")
def test_a_signal_to_the_process_is_held_back_whoever_takes_it(number):
    with held_back():
        os.kill(os.getpid(), number)
        time.sleep(0.1)
        with pytest.raises(Told), let_through():
            pass
