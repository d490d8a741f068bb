"""Children of a test that a signal kills are a notice, unless the rank has sent that signal."""

import pytest

from allranks.protocol.records import Collected, Notice, Passed

HELPERS = """
    import ctypes
    import os
    import signal
    import time

    def crash():
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def wait():
        time.sleep(600)
"""

SUITE = """
    import asyncio
    import ctypes
    import gc
    import multiprocessing
    import os
    import signal
    import subprocess
    import sys
    import threading

    import pytest
    import helpers

    PROGRAM = "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"
    ENDLESS = [sys.executable, "-c", "import time; time.sleep(600)"]

    def started(method, target):
        process = multiprocessing.get_context(method).Process(target=target)
        process.start()
        return process

    def forked(act):
        pid = os.fork()
        if not pid:
            try:
                act()
            finally:
                os._exit(0)
        return pid

    def has_ended(pid):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_joined(method):
        started(method, helpers.crash).join()

    def test_two_of_one_rank(rank):
        if rank == 1:
            processes = [started("fork", helpers.die) for _ in range(2)]
            for process in processes:
                process.join()

    def test_never_joined():
        has_ended(started("fork", helpers.die).pid)

    def test_fork_never_waited_for():
        has_ended(forked(helpers.die))

    def test_after_it_nothing_is_told_again():
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    @pytest.mark.parametrize("wait", [
        lambda pid: os.waitpid(pid, 0), lambda pid: os.wait(), lambda pid: os.wait4(pid, 0),
        lambda pid: os.waitid(os.P_PID, pid, os.WEXITED),
    ], ids=["waitpid", "wait", "wait4", "waitid"])
    def test_fork_waited_for(wait):
        wait(forked(helpers.die))

    def test_subprocess_run():
        subprocess.run([sys.executable, "-c", PROGRAM])

    def test_subprocess_in_a_thread():
        thread = threading.Thread(target=subprocess.call, args=([sys.executable, "-c", PROGRAM],))
        thread.start()
        thread.join()

    def test_asyncio():
        async def run():
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM)
            await process.wait()
        asyncio.run(run())

    def test_dropped():
        process = subprocess.Popen([sys.executable, "-c", PROGRAM])
        has_ended(process.pid)
        del process
        gc.collect()

    def test_killed_by_another_program():
        process = started("fork", helpers.wait)
        subprocess.run(["sh", "-c", f"kill -TERM {process.pid}"], check=True)
        process.join()

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    @pytest.mark.parametrize("end", ["terminate", "kill"])
    def test_own_process(method, end):
        process = started(method, helpers.wait)
        getattr(process, end)()
        process.join()

    def test_own_timeout():
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(ENDLESS, timeout=0.1)

    def test_own_group():
        process = subprocess.Popen(ENDLESS, start_new_session=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def test_own_pidfd():
        pid = forked(helpers.wait)
        descriptor = os.pidfd_open(pid)
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        os.waitpid(pid, 0)

    def test_own_pool():
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(abs, range(4))

    def test_own_asyncio():
        async def run():
            process = await asyncio.create_subprocess_exec(*ENDLESS)
            process.kill()
            await process.wait()
        asyncio.run(run())

    def test_own_never_waited_for():
        pid = forked(helpers.wait)
        os.kill(pid, signal.SIGKILL)
        has_ended(pid)

    @pytest.mark.parametrize("status", [0, 1, 77])
    def test_exits(status):
        os.waitpid(forked(lambda: os._exit(status)), 0)

    def test_works_as_before():
        import pickle
        assert pickle.loads(pickle.dumps((os.kill, os.waitpid))) == (os.kill, os.waitpid)
        process = subprocess.Popen(["true"])
        assert process.returncode is None
        assert (process.wait(), process.returncode) == (0, 0)
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, 0)
        with pytest.raises(TypeError):
            os.kill("x", 9)
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
"""

METHODS = ("fork", "spawn", "forkserver")
OF_BOTH = "1 child process of each of ranks 0, 1 was killed by "


@pytest.fixture(scope="module")
def suite(run_once):
    return run_once("killed_children", {"helpers.py": HELPERS, "test_it.py": SUITE}, isolation="job")


def told(agent, test):
    return [each.text for each in agent.all(Notice) if each.nodeid == f"suite/test_it.py::{test}"]


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("test_joined[fork]", f"{OF_BOTH}SIGSEGV"),
        ("test_joined[spawn]", f"{OF_BOTH}SIGSEGV"),
        ("test_joined[forkserver]", f"{OF_BOTH}SIGSEGV"),
        ("test_two_of_one_rank", "2 child processes of rank 1 were killed by SIGKILL"),
        ("test_never_joined", f"{OF_BOTH}SIGKILL"),
        ("test_fork_never_waited_for", f"{OF_BOTH}SIGKILL"),
        *((f"test_fork_waited_for[{wait}]", f"{OF_BOTH}SIGKILL") for wait in ("waitpid", "wait", "wait4", "waitid")),
        ("test_subprocess_run", f"{OF_BOTH}SIGABRT"),
        ("test_subprocess_in_a_thread", f"{OF_BOTH}SIGABRT"),
        ("test_asyncio", f"{OF_BOTH}SIGABRT"),
        ("test_dropped", f"{OF_BOTH}SIGABRT"),
        ("test_killed_by_another_program", f"{OF_BOTH}SIGTERM"),
    ],
)
def test_a_child_that_a_signal_killed_is_a_notice_on_its_test(suite, test, text):
    assert told(suite, test) == [text]


@pytest.mark.parametrize(
    "test",
    [
        "test_after_it_nothing_is_told_again",
        *(f"test_own_process[{end}-{method}]" for end in ("terminate", "kill") for method in METHODS),
        "test_own_timeout",
        "test_own_group",
        "test_own_pidfd",
        "test_own_pool",
        "test_own_asyncio",
        "test_own_never_waited_for",
        *(f"test_exits[{status}]" for status in (0, 1, 77)),
        "test_works_as_before",
    ],
)
def test_a_child_that_the_test_ended_itself_is_none(suite, test):
    assert told(suite, test) == []


def test_every_test_passes_all_the_same(suite):
    [collected] = suite.all(Collected)
    assert {each.nodeid for each in suite.all(Passed)} == set(collected.tests)
