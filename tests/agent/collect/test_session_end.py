"""Hooks that exit at the end of pytest's session: their status is that of the session, and no test fails."""

from itertools import product

import pytest
from long_lists import quick

from allranks.protocol.records import AgentFailed, FailureKind

SUITE = {
    "test_small.py": """
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_passes(number): pass
    """
}
BAD = {**SUITE, "test_bad.py": "def test_fails(): assert 0"}
THREADED = {
    "test_small.py": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
    "def test_passes(rank): pass\n"
}
CHANGED = "A hook of the suite or of a plugin changed pytest's exit status"

HOOKS = {
    "session_finish": "def pytest_sessionfinish(session, exitstatus):",
    "last_session_finish": "@pytest.hookimpl(trylast=True)\ndef pytest_sessionfinish(session, exitstatus):",
    "unconfigure": "def pytest_unconfigure(config):",
}
WAYS = {
    "os._exit": "os._exit(STATUS)",
    "sys.exit": "sys.exit(STATUS)",
    "SystemExit": "raise SystemExit(STATUS)",
    "pytest.exit": "pytest.exit('over', returncode=STATUS)",
    "C": "ctypes.CDLL(None)._exit(STATUS)",
    "thread": "t = threading.Thread(target=os._exit, args=(STATUS,)); t.start(); t.join()",
}
ONE_OF_EACH_HOOK = {("session_finish", "os._exit"), ("unconfigure", "C"), ("last_session_finish", "thread")}
HOOKS_AND_WAYS = sorted(product(HOOKS, WAYS), key=lambda pair: pair not in ONE_OF_EACH_HOOK)


def conftest(hook, way):
    return f"import ctypes, os, signal, sys, threading\nimport pytest\n{HOOKS[hook]}\n    {way}\n"


@pytest.mark.thorough
@pytest.mark.parametrize(("hook", "way"), quick(3, HOOKS_AND_WAYS))
def test_a_hook_that_exits_with_success_ends_the_session(run_agent, hook, way):
    job = run_agent({"conftest.py": conftest(hook, WAYS[way].replace("STATUS", "0")), **SUITE})
    assert not job.all(AgentFailed)
    assert {case.outcome for case in job.cases(0).values()} == {"passed"}


@pytest.mark.parametrize("status", quick(1, [77, 5, 1]))
@pytest.mark.parametrize(
    ("hook", "way"),
    quick(1, [*(("session_finish", way) for way in WAYS), ("unconfigure", "os._exit"), ("unconfigure", "C")]),
)
def test_a_hook_that_exits_with_another_status_changes_that_of_the_session(start_agent, hook, way, status):
    job = start_agent({"conftest.py": conftest(hook, WAYS[way].replace("STATUS", str(status))), **SUITE}).go()
    assert job.wait() == 1
    [failed] = job.all(AgentFailed)
    assert (failed.message, failed.kind) == (f"{CHANGED} from 0 to {status}.", FailureKind.SUITE)
    assert {case.outcome for case in job.cases(0).values()} == {"passed"}


@pytest.mark.parametrize("status", quick(1, ["session.exitstatus", "int(exitstatus)", "0", "1"]))
def test_a_hook_that_exits_with_the_status_of_a_failed_session_adds_nothing(run_agent, status):
    job = run_agent({"conftest.py": conftest("session_finish", f"os._exit({status})"), **BAD})
    assert not job.all(AgentFailed)
    assert job.outcomes("test_fails") == ("failed", "failed")


@pytest.mark.parametrize(
    ("way", "number"), quick(1, [("os.abort()", "SIGABRT"), ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL")])
)
@pytest.mark.parametrize("hook", quick(1, ["session_finish", "unconfigure"]))
def test_a_crash_at_the_end_of_the_session_does_not_fail_a_test(start_agent, hook, way, number):
    job = start_agent({"conftest.py": conftest(hook, way), **SUITE}).go()
    assert job.wait() == 1
    [failed] = job.all(AgentFailed)
    assert f"was killed by {number}" in failed.message
    assert {case.outcome for case in job.cases(0).values()} == {"passed"}


@pytest.mark.thorough
@pytest.mark.parametrize("way", quick(1, [*WAYS.values(), "session.exitstatus = STATUS"]))
def test_a_rank_in_a_new_process_may_exit_at_the_end_of_its_session(start_agent, way):
    way = f"if 'RANK' in os.environ:\n        {way}"
    job = start_agent({"conftest.py": conftest("session_finish", way.replace("STATUS", "0")), **THREADED}).go()
    assert job.wait() == 0, job.log
    assert job.outcomes("test_passes") == ("passed", "passed")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("way", "message"),
    quick(
        1,
        [
            ("raise LookupError('no such store')", f"{CHANGED} on rank 1 from 0 to 1."),
            ("os.abort()", "Rank 1 was killed by SIGABRT while ending its pytest session."),
            ("os._exit(77)", f"{CHANGED} on rank 1 from 0 to 77."),
            ("sys.exit(3)", f"{CHANGED} on rank 1 from 0 to 3."),
            ("pytest.exit('over', returncode=5)", f"{CHANGED} on rank 1 from 0 to 5."),
            ("session.exitstatus = 1", f"{CHANGED} on rank 1 from 0 to 1."),
        ],
    ),
)
def test_an_error_at_the_end_of_a_ranks_session_does_not_fail_a_test(start_agent, way, message):
    way = f"if os.environ.get('RANK') == '1':\n        {way}"
    job = start_agent({"conftest.py": conftest("session_finish", way), **THREADED}).go()
    assert job.wait() == 1
    [failed] = job.all(AgentFailed)
    assert failed.message == message
    assert ("LookupError" in way) == ("LookupError: no such store" in failed.text)
    assert ("abort" in way) == ("in pytest_sessionfinish" in failed.text and "Fatal" in failed.text)
    assert job.outcomes("test_passes") == ("passed", "passed")
