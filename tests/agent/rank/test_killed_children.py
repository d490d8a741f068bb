"""Processes that a test starts and that fail while the test passes: an error, a notice, or nothing."""

import re

import pytest
from long_lists import quick

from allranks.protocol.records import Notice

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

    def leave():
        raise SystemExit(3)

    def leave_when_asked():
        signal.signal(signal.SIGTERM, lambda *_: leave())
        time.sleep(600)

    def skip_while_cleaning_up():
        try:
            raise ValueError("boom")
        except ValueError:
            raise SystemExit(86)  # one of torch's skips

    def fail_later(released):
        released.wait()
        raise ValueError("late")

    def crash_later(released):
        released.wait()
        crash()

    def leave_late_when_asked(released):
        def asked(*_):
            released.wait()
            leave()
        signal.signal(signal.SIGTERM, asked)
        time.sleep(600)

    def die_as_a_rank():
        os.environ["RANK"] = "5"
        die()

    def fail_in_a_pool(number):
        raise ValueError("boom")  # the pool

    def fail():
        raise ValueError("boom")  # the line

    def fail_while_cleaning_up():
        try:
            raise ValueError("boom")  # the line
        except ValueError:
            raise SystemExit(1)
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
    import textwrap
    import threading
    import time
    from concurrent.futures import ProcessPoolExecutor
    from unittest import mock

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

    # A process that one test starts and that acts when a later test releases it.
    class Left:
        def __init__(self, act):
            context = multiprocessing.get_context("fork")
            self.released = context.Event()
            self.process = context.Process(target=act, args=(self.released,))
            self.process.start()

        def act(self):
            self.released.set()
            has_ended(self.process.pid)

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_joined(method):
        started(method, helpers.crash).join()

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

    def test_environment_cleared():
        with mock.patch.dict(os.environ, clear=True):
            started("fork", helpers.crash).join()

    def test_functions_replaced():
        with mock.patch("time.monotonic", lambda: "noon"), mock.patch("os.open", side_effect=RuntimeError):
            os.waitpid(forked(helpers.crash), 0)

    def test_seen_stopped_before():
        pid = forked(helpers.wait)
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        subprocess.run(["sh", "-c", f"kill -ABRT {pid}"], check=True)
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)

    def test_killed_again():
        process = started("fork", helpers.die)
        has_ended(process.pid)
        process.kill()
        process.join()

    @pytest.fixture(scope="module")
    def server():
        left = Left(helpers.fail_later)
        yield left
        left.process.join()

    def test_server_works(server):
        pass

    def test_server_fails(server):
        server.act()

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

    def test_own_that_leaves():
        process = started("fork", helpers.leave_when_asked)
        time.sleep(0.3)
        process.terminate()
        process.join()

    def test_own_interrupted():
        process = started("fork", helpers.wait)
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGINT)
        process.join()

    def test_own_grandchild():
        reader, writer = os.pipe()
        def work():
            process = started("fork", helpers.wait)
            os.write(writer, str(process.pid).encode())
            process.join()
        process = started("fork", work)
        os.kill(int(os.read(reader, 20)), signal.SIGKILL)
        process.join()

    SCRIPT = '''
        import multiprocessing
        import time
        if __name__ == "__main__":
            process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,))
            process.start()
            process.terminate()
            process.join()
    '''

    def test_own_of_a_script(tmp_path):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(SCRIPT))
        subprocess.run([sys.executable, script], check=True)

    def test_own_reader_has_read_enough():
        with subprocess.Popen(["sh", "-c", "while :; do echo y; done"], stdout=subprocess.PIPE) as process:
            process.stdout.readline()

    def test_own_stopped_for_a_while():
        process = started("fork", helpers.wait)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.kill()
        process.join()

    def test_skip_while_cleaning_up():
        started("fork", helpers.skip_while_cleaning_up).join()

    def test_waited_for_by_somebody_else():
        process = subprocess.Popen([sys.executable, "-c", ""])
        os.waitpid(process.pid, 0)
        del process
        gc.collect()
        subprocess.run(["true"])

    @pytest.mark.parametrize("status", [0, 1, 77])
    def test_exits(status):
        os.waitpid(forked(lambda: os._exit(status)), 0)

    def test_another_program_fails():
        fails = ["sh", "-c", "exit 1"]
        subprocess.run(fails)
        subprocess.run(fails, preexec_fn=os.setsid)
        os.waitpid(forked(lambda: os.execvp("sh", fails)), 0)

    ACTS = {"fail": helpers.fail, "clean": helpers.fail_while_cleaning_up, "leave": helpers.leave}

    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_raises(method, act):
        started(method, ACTS[act]).join()

    def test_fork_that_leaves_as_it_handles_an_exception():
        pid = os.fork()
        if not pid:
            try:
                helpers.fail()
            except ValueError:
                os._exit(1)
        os.waitpid(pid, 0)

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_rank_that_it_has_set_itself(method):
        started(method, helpers.die_as_a_rank).join()

    def pool_of(kind):
        context = multiprocessing.get_context("forkserver")
        return ProcessPoolExecutor(2, context) if kind == "executor" else context.Pool(2)

    @pytest.mark.parametrize("kind", ["executor", "pool"])
    def test_pool(kind):
        with pool_of(kind) as workers, pytest.raises(ValueError):
            list(workers.map(helpers.fail_in_a_pool, range(1)))

    @pytest.mark.parametrize("kind", ["executor", "pool"])
    def test_pool_fails(kind):
        with pool_of(kind) as workers:
            list(workers.map(helpers.fail_in_a_pool, range(1)))

    @pytest.mark.parametrize("kind", ["executor", "pool"])
    def test_pool_has_failed(kind):
        test_pool(kind)
        assert False

    def test_leaves_one_that_crashes():
        server.left = Left(helpers.crash_later)

    def test_next():
        server.left.act()

    def test_leaves_a_program_that_crashes():
        code = "import os, sys; sys.stdin.read(); os.abort()"
        server.program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)

    def test_next_of_a_program():
        server.program.communicate()

    def test_leaves_one_that_fails():
        server.left = Left(helpers.fail_later)

    def test_next_fails():
        server.left.act()
        started("fork", helpers.leave).join()
        assert False

    def test_leaves_one_that_it_stops():
        server.left = Left(helpers.leave_late_when_asked)
        time.sleep(0.3)
        server.left.process.terminate()

    def test_after_one_that_was_stopped():
        server.left.act()

    def test_of_a_program():
        code = "import sys; sys.path.insert(0, sys.argv[1]); import helpers; helpers.fail()"
        program = [sys.executable, "-c", code, os.path.dirname(helpers.__file__)]
        subprocess.run(program, env={**os.environ, "RANK": "7"})

    PROGRAM_THAT_STARTS_PROCESSES = '''
        import multiprocessing
        import sys
        sys.path.insert(0, sys.argv[1])
        import helpers
        if __name__ == "__main__":
            process = multiprocessing.get_context("fork").Process(target=helpers.die, name="worker")
            process.start()
            process.join()
    '''

    def test_of_a_program_that_starts_processes(tmp_path):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(PROGRAM_THAT_STARTS_PROCESSES))
        subprocess.run([sys.executable, script, os.path.dirname(helpers.__file__)])

    def test_that_is_expected_to_fail():
        assert not pytest.xfail("as expected") or started("fork", helpers.fail).join()

    @pytest.mark.children_may_fail
    def test_marked():
        started("fork", helpers.crash).join()
        started("fork", helpers.fail).join()

    def test_several():
        for process in [started("fork", helpers.leave) for _ in range(7)]:
            process.join()

    def test_works_as_before():
        import pickle
        assert pickle.loads(pickle.dumps((os.kill, os.waitpid))) == (os.kill, os.waitpid)
        assert os.execve in os.supports_fd
        process = subprocess.Popen(["true"])
        assert process.returncode is None
        assert (process.wait(), process.returncode) == (0, 0)
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, 0)
        with pytest.raises(TypeError):
            os.kill("x", 9)
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)

    def test_two_of_one_rank(rank):
        if rank == 1:
            processes = [started("fork", helpers.die) for _ in range(2)]
            for process in processes:
                process.join()
"""

METHODS = ("fork", "spawn", "forkserver")
KIND = {"fork": "ForkProcess", "spawn": "SpawnProcess", "forkserver": "ForkServerProcess"}
LINE = 1 + next(number for number, line in enumerate(HELPERS.splitlines()) if "# the line" in line)
IN_POOL = 1 + next(number for number, line in enumerate(HELPERS.splitlines()) if "# the pool" in line)
LATE = 1 + next(number for number, line in enumerate(HELPERS.splitlines()) if 'late")' in line)
PASSED = "but the test passed (on ranks 0 and 1)"


@pytest.fixture(scope="module")
def suite(run_once):
    files = {"helpers.py": HELPERS, "test_it.py": SUITE}
    return run_once("killed_children", files, isolation="job", limits={"peer_grace": 20.0})


def notices(agent, test):
    return [notice.text for notice in agent.all(Notice) if notice.nodeid == f"suite/test_it.py::{test}"]


@pytest.mark.parametrize(
    ("test", "number"),
    [
        *((f"test_joined[{method}]", "SIGSEGV") for method in METHODS),
        ("test_subprocess_run", "SIGABRT"),
        ("test_subprocess_in_a_thread", "SIGABRT"),
        ("test_asyncio", "SIGABRT"),
        ("test_dropped", "SIGABRT"),
        ("test_environment_cleared", "SIGSEGV"),
        ("test_functions_replaced", "SIGSEGV"),
        ("test_seen_stopped_before", "SIGABRT"),
    ],
)
def test_a_crash_makes_a_test_that_passed_an_error(suite, test, number):
    for rank in range(2):
        case = suite.cases(rank)[test]
        assert case.outcome == "errored"
        assert case.message.startswith(("a child process ", "child process "))
        assert case.message.endswith(f" was killed by {number}, but the test passed")


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("test_never_joined", "ForkProcess-N was killed by SIGKILL"),
        ("test_fork_never_waited_for", "a child process was killed by SIGKILL"),
        *(
            (f"test_fork_waited_for[{wait}]", "a child process was killed by SIGKILL")
            for wait in ("waitpid", "wait", "wait4", "waitid")
        ),
        ("test_killed_again", "ForkProcess-N was killed by SIGKILL"),
        ("test_server_fails", f"ForkProcess-N of an earlier test raised ValueError: late at suite/helpers.py:{LATE}"),
        ("test_killed_by_another_program", "ForkProcess-N was killed by SIGTERM"),
        *((f"test_raises[{method}-leave]", f"{KIND[method]}-N ended with exit status 3") for method in METHODS),
        *(
            (f"test_raises[{method}-{how}]", f"{KIND[method]}-N raised ValueError: boom at suite/helpers.py:{line}")
            for method in METHODS
            for how, line in (("fail", LINE), ("clean", LINE + 4))
        ),
        (
            "test_fork_that_leaves_as_it_handles_an_exception",
            f"a child process raised ValueError: boom at suite/helpers.py:{LINE}",
        ),
        *((f"test_rank_that_it_has_set_itself[{m}]", "child process (rank 5) was killed by SIGKILL") for m in METHODS),
        ("test_next", "child process ForkProcess-N of an earlier test was killed by SIGSEGV"),
        ("test_next_of_a_program", "a child process of an earlier test was killed by SIGABRT"),
        ("test_of_a_program", f"child process (rank 7) raised ValueError: boom at suite/helpers.py:{LINE}"),
        ("test_exits[1]", "a child process ended with exit status 1"),
    ],
)
def test_other_failures_are_notices(suite, test, text):
    assert suite.cases(0)[test].outcome == "passed"
    name = text if "child process" in text else f"child process {text}"
    assert [re.sub(r"Process-\d+", "Process-N", text) for text in notices(suite, test)] == [f"{name}, {PASSED}"]


def test_the_notice_names_the_rank_that_started_the_processes(suite):
    [first, second] = notices(suite, "test_two_of_one_rank")
    assert first != second
    assert all(text.endswith(" was killed by SIGKILL, but the test passed (on rank 1)") for text in (first, second))


def test_processes_of_a_program_have_their_names(suite):
    [notice] = notices(suite, "test_of_a_program_that_starts_processes")
    assert notice.startswith("child process worker was killed by SIGKILL, ")


def test_a_notice_lists_at_most_five_processes(suite):
    of_rank_0 = [text for text in notices(suite, "test_several") if re.search("on ranks? 0", text)]
    assert len(of_rank_0) == 6
    assert f"2 more child processes failed, {PASSED}" in of_rank_0  # in any order: rank 1 may have ended first


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
        "test_own_that_leaves",
        "test_own_interrupted",
        "test_own_grandchild",
        "test_own_of_a_script",
        "test_own_reader_has_read_enough",
        "test_own_stopped_for_a_while",
        "test_skip_while_cleaning_up",
        "test_waited_for_by_somebody_else",
        "test_server_works",
        *(f"test_pool[{kind}]" for kind in ("executor", "pool")),
        "test_leaves_one_that_crashes",
        "test_leaves_a_program_that_crashes",
        "test_leaves_one_that_fails",
        "test_after_one_that_was_stopped",
        "test_exits[0]",
        "test_exits[77]",
        "test_another_program_fails",
        "test_marked",
        "test_works_as_before",
    ],
)
def test_stopped_and_expected_failures_are_not_reported(suite, test):
    assert suite.cases(0)[test].outcome == "passed"
    assert notices(suite, test) == []


@pytest.mark.parametrize("kind", ["executor", "pool"])
def test_an_exception_of_a_pool_worker_has_its_line(suite, kind):
    words = f"ForkServer{'Process' if kind == 'executor' else 'PoolWorker'}-"
    of_worker = f"raised ValueError: boom at suite/helpers.py:{IN_POOL}; "
    case = suite.cases(0)[f"test_pool_fails[{kind}]"]
    assert case.outcome == "failed"
    assert case.message.startswith(f"child process {words}")
    assert f" {of_worker}ValueError: boom" in case.message
    assert suite.cases(0)[f"test_pool_has_failed[{kind}]"].message.startswith("assert False")


def test_a_process_of_this_test_precedes_one_of_an_earlier_test(suite):
    case = suite.cases(0)["test_next_fails"]
    assert re.match(r"child process ForkProcess-\d+ ended with exit status 3; assert False", case.message)
    assert " of an earlier test " in case.text


@pytest.mark.parametrize(("policy", "outcome"), quick(1, [("error", "errored"), ("ignore", "passed")]))
def test_unchecked_children_decides_about_unchecked_failures(run_once, policy, outcome):
    files = {"helpers.py": HELPERS, "test_it.py": SUITE}
    agent = run_once(
        policy, files, isolation="job", unchecked_children=policy, pytest_args=("-k", "test_raises and fork-leave")
    )
    case = agent.cases(0)["test_raises[fork-leave]"]
    assert case.outcome == outcome
    assert notices(agent, "test_raises[fork-leave]") == []
    assert case.message.endswith(" ended with exit status 3, but the test passed") == (policy == "error")
