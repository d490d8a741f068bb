"""Tests whose import starts threads: their ranks are new processes instead of forks."""

import socket

import pytest

from allranks.protocol.records import CollectionFailed, LeftBehind, Notice

THREADED = """
    import os
    import queue
    import threading

    import pytest
    import torch
    import torch.distributed as dist

    work, results = queue.Queue(), queue.Queue()

    def serve():
        while True:
            results.put(work.get() + 1)

    threading.Thread(target=serve, name="heartbeat", daemon=True).start()
    parents = [os.getpid()]

    def test_thread_serves(rank, world_size):
        work.put(rank)
        assert results.get(timeout=20) == rank + 1
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world_size
        assert parents == [os.getpid()]
        print("printed by", rank)

    @pytest.mark.parametrize("name", ["a b", "c::d"])
    def test_same_process(name, tmp_path):
        assert parents == [os.getpid()]
        parents.append(os.getpid())
        parents.pop()
"""
FAILING = f"""{THREADED}
    def test_fails(rank):
        assert rank == 1

    def test_new_process():
        assert parents == [os.getpid()]
        work.put(1)
        assert results.get(timeout=20) == 2
"""
FORKED = """
    import os
    imported_by = os.getpid()

    def test_forked():
        assert imported_by != os.getpid()
"""


@pytest.fixture(scope="module")
def threaded(run_once):
    return run_once("threaded", {"test_threaded.py": THREADED, "test_forked.py": FORKED})


@pytest.mark.thorough
def test_a_notice_states_the_module_and_the_thread(threaded):
    [notice] = threaded.all(Notice)
    assert notice.nodeid == "suite/test_threaded.py"
    assert notice.text.startswith(
        "Importing this file starts the thread heartbeat, which forks of this process do not have"
    )
    assert not threaded.all(CollectionFailed)


@pytest.mark.parametrize("test", ["test_thread_serves", "test_same_process[a b]", "test_same_process[c::d]"])
def test_the_ranks_import_the_file_again_and_have_the_thread(threaded, test):
    assert threaded.outcomes(test) == ("passed", "passed"), threaded.cases(0)[test]


def test_the_ranks_of_other_files_are_forks(threaded):
    assert threaded.outcomes("test_forked") == ("passed", "passed")


@pytest.fixture(scope="module")
def failing(run_once):
    return run_once("failing", {"test_threaded.py": FAILING})


@pytest.mark.thorough
def test_a_failure_replaces_them(failing):
    assert failing.outcomes("test_fails") == ("failed", "passed")
    assert failing.outcomes("test_new_process") == ("passed", "passed")
    assert len(failing.gangs()) == 2


@pytest.mark.thorough
def test_output_of_the_import_is_not_the_tests_output(failing):
    case = failing.cases(0)["test_fails"]
    assert "collected" not in case.stdout
    assert "test session starts" in failing.log


POOL = """
    import multiprocessing
    import pytest
    import holder

    def pytest_sessionstart():
        pytest.pool = multiprocessing.get_context("spawn").Pool(1, holder.hold, (PORT,))

    def pytest_sessionfinish():
        pytest.pool.close()
        pytest.pool.join()
"""
HOLDER = """
    import socket

    held = []

    def hold(port):
        # Like a pool with a process group: only one process at a time can bind the port.
        held.append(socket.create_server(("127.0.0.1", port)))
"""
USES_POOL = """
    import pytest

    def test_pool():
        assert pytest.pool.map(abs, [-1, -2]) == [1, 2]
"""


@pytest.mark.thorough
def test_a_session_wide_pool_works_in_the_tests_and_is_closed(run_agent):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    files = {"conftest.py": POOL.replace("PORT", str(port)), "holder.py": HOLDER, "test_pool.py": USES_POOL}
    agent = run_agent(files, launches_ranks=True)
    [end] = agent.arrived("test_pool")
    assert end.outcome == "passed", end.text
    [notice] = agent.all(Notice)
    assert notice.text.startswith("A hook of a plugin or a conftest file starts the threads ")
    assert not agent.all(LeftBehind)
    agent.assert_nothing_left()


@pytest.mark.thorough
def test_all_tests_run_in_new_processes_if_a_hook_after_collection_starts_a_thread(run_agent):
    conftest = """
        import threading

        def pytest_collection_modifyitems():
            threading.Thread(target=threading.Event().wait, name="heartbeat", daemon=True).start()
    """
    tests = """
        import threading

        def test_thread():
            assert "heartbeat" in {thread.name for thread in threading.enumerate()}
    """
    agent = run_agent({"conftest.py": conftest, "test_it.py": tests}, world_size=1)
    [notice] = agent.all(Notice)
    assert notice.text.startswith("A hook of a plugin or a conftest file starts the thread heartbeat")
    assert agent.outcomes("test_thread") == ("passed",)


ONLY_ONCE = """
    import os
    import threading

    if "IMPORTED" in os.environ:
        raise RuntimeError("no second import")
    os.environ["IMPORTED"] = "1"
    threading.Thread(target=threading.Event().wait, daemon=True).start()

    def test_never_runs(): pass
"""


@pytest.mark.thorough
def test_a_file_that_cannot_be_imported_again_is_an_error_of_its_tests(run_agent):
    agent = run_agent({"test_once.py": ONLY_ONCE}, world_size=1)
    case = agent.cases(0)["test_never_runs"]
    assert case.outcome == "errored"
    assert case.message.startswith("the test's files could not be imported again in a new process: ")
    assert "no second import" in case.message
    assert "test_once.py" in case.text


@pytest.mark.thorough
def test_a_hang_of_the_second_import_ends_with_the_gangs_start(run_agent):
    tests = ONLY_ONCE.replace('raise RuntimeError("no second import")', "threading.Event().wait()")
    agent = run_agent({"test_once.py": tests}, world_size=1, limits={"job": 6})
    case = agent.cases(0)["test_never_runs"]
    assert case.outcome in ("timed_out", "aborted", "missing")
    agent.assert_nothing_left()
