from allranks.agent.linux import Timer, is_readable


def test_a_timer_expires_periodically():
    timer = Timer(0.01)
    try:
        for _ in range(3):
            assert is_readable(timer.fileno(), 10)
            assert timer.has_expired()
    finally:
        timer.close()


def test_a_timer_that_has_not_expired():
    timer = Timer(3600)
    try:
        assert not timer.has_expired()
    finally:
        timer.close()
