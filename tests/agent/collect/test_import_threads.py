import threading

import pytest

from allranks.agent.rank.imports import NewThreads, ThreadWatch


@pytest.fixture
def start():
    """Starts a thread that ends with the test."""
    end = threading.Event()
    threads = []

    def start_one(name):
        thread = threading.Thread(target=end.wait, name=name)
        threads.append(thread)
        thread.start()

    yield start_one
    end.set()
    for thread in threads:
        thread.join()


def test_a_thread_is_reported_once(start):
    watch = ThreadWatch()
    start("heartbeat")
    assert watch.take() == NewThreads(python=("heartbeat",), native=())
    assert watch.take() == NewThreads(python=(), native=())


def test_a_thread_that_existed_before_is_not_reported(start):
    start("early")
    assert ThreadWatch().take().python == ()
