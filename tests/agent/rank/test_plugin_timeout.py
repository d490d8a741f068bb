import pytest

from allranks.agent.diagnose.step_outcome import pytest_timeout_message
from allranks.agent.rank.marker_options import plugin_limit

pytest_plugins = ["pytester"]

SUITE = {
    "test_slow.py": """
        import threading

        def test_waits():
            threading.Event().wait()
    """
}


@pytest.fixture(scope="module")
def printed(run_once):
    """The output of a rank that pytest-timeout ends by its thread method."""
    arguments = ("-p", "pytest_timeout", "--timeout=0.3", "--timeout-method=thread")
    agent = run_once("thread-timeout", SUITE, pytest_args=arguments, world_size=1)
    return (agent.results / "rank-0.log").read_text()


def test_a_timeout_by_the_thread_method_of_pytest_timeout_is_recognized(printed):
    reason = pytest_timeout_message(printed)
    assert reason.startswith("ended by pytest-timeout; it was in ")
    assert reason.endswith("suite/test_slow.py:5 in test_waits")


@pytest.mark.parametrize("output", ["", "Timeout", f"{10 * '+'} Timeouts {10 * '+'}", "+ Timeout +"])
def test_other_output_is_not_a_timeout(output):
    assert pytest_timeout_message(output) is None


def test_the_stack_may_be_cut():
    assert pytest_timeout_message(f"suite/test_x.py {10 * '+'} Timeout {10 * '+'}\n…") == "ended by pytest-timeout"


MARK = "@pytest.mark.timeout({})\n"


@pytest.mark.parametrize(
    ("mark", "settings", "words"),
    [
        ("", {"option": 3}, "3 s (--timeout)"),
        ("", {"variable": 4}, "4 s (PYTEST_TIMEOUT)"),
        ("", {"ini": 5}, "5 s (timeout in pytest's configuration)"),
        (MARK.format("2"), {"option": 3, "variable": 4, "ini": 5}, "2 s (@pytest.mark.timeout)"),
        (MARK.format("timeout=2.5, method='thread'"), {"option": 3}, "2.5 s (@pytest.mark.timeout)"),
        (MARK.format("method='thread'"), {"option": 3, "variable": 4}, "3 s (--timeout)"),
        (MARK.format("0"), {"option": 3, "variable": 4, "ini": 5}, ""),
        (MARK.format("'soon'"), {}, ""),
        ("", {}, ""),
    ],
)
def test_the_limit_of_pytest_timeout_is_known_with_its_setting(pytester, monkeypatch, mark, settings, words):
    monkeypatch.delenv("PYTEST_TIMEOUT", raising=False)
    if "variable" in settings:
        monkeypatch.setenv("PYTEST_TIMEOUT", str(settings["variable"]))
    pytester.makeini(f"[pytest]\ntimeout = {settings.get('ini', '')}")
    path = pytester.makepyfile(f"import pytest\n{mark}def test_it(): pass")
    options = [f"--timeout={settings['option']}"] if "option" in settings else []
    plugins = ("-p", "no:hypothesispytest", "-p", "no:timeout", "-p", "pytest_timeout")
    [item], _ = pytester.inline_genitems(path, *plugins, *options)
    limit = plugin_limit(item)
    assert (limit.words() if limit else "") == words
