import pytest

from allranks.harness.gangs.step_outcome import is_pytest_timeout

SUITE = {
    "test_slow.py": """
        import threading

        def test_waits():
            threading.Event().wait()
    """
}


@pytest.fixture(scope="module")
def printed(run_once):
    """What a rank prints that pytest-timeout ends by its thread method."""
    arguments = ("-p", "pytest_timeout", "--timeout=0.3", "--timeout-method=thread")
    agent = run_once("thread-timeout", SUITE, pytest_args=arguments, world_size=1)
    return (agent.results / "rank-0.log").read_text()


def test_the_end_by_pytest_timeouts_thread_method_is_known(printed):
    reason = is_pytest_timeout(printed)
    assert reason.startswith("timed out by pytest-timeout; it was in ")
    assert reason.endswith("suite/test_slow.py:5 in test_waits")


@pytest.mark.parametrize("output", ["", "Timeout", f"{10 * '+'} Timeouts {10 * '+'}", "+ Timeout +"])
def test_other_output_is_no_timeout(output):
    assert is_pytest_timeout(output) is None


def test_the_stack_may_have_been_cut_away():
    assert is_pytest_timeout(f"suite/test_x.py {10 * '+'} Timeout {10 * '+'}\n…") == "timed out by pytest-timeout"
