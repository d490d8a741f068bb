"""Processes with the start methods ``spawn`` and ``forkserver`` that a warm server starts."""

import threading
from pathlib import Path

import pytest

from allranks.agent import warm_server
from allranks.protocol.records import Notice

HELPERS = """
    import multiprocessing
    import os
    import random
    import re
    import signal
    import sys
    import tempfile
    import threading
    import time
    import warnings
    from multiprocessing import popen_spawn_posix
    from multiprocessing.context import ForkServerProcess, SpawnProcess
    from pathlib import Path

    class ColdProcess(SpawnProcess):
        _Popen = staticmethod(popen_spawn_posix.Popen)

    STARTS = {"cold": ColdProcess, "spawn": SpawnProcess, "forkserver": ForkServerProcess}

    def call(start, function, *args):
        reading, writing = multiprocessing.get_context("spawn").Pipe(False)
        process = STARTS[start](target=answer, args=(writing, function, *args))
        process.start()
        writing.close()
        try:
            return reading.recv()
        finally:
            process.join()

    def answer(connection, function, *args):
        connection.send(function(*args))

    def is_warm():
        return "wave" in sys.modules  # only test_it.py imports it

    def variable(name):
        return is_warm(), os.environ.get(name)

    def state():
        def masked(text):
            return re.sub(r"[0-9]+", "N", text)
        def is_of_suite(module):
            file = getattr(module, "__file__", None) or ""
            return file.startswith(os.path.dirname(os.path.abspath(__file__)))
        tools = {"allranks", "pytest", "_pytest", "pluggy"}
        main = sys.modules["__main__"]
        status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
        current = multiprocessing.current_process()
        return {
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "arguments": (sys.argv, list(map(masked, sys.orig_argv))),
            "command": masked(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode()),
            "path": sys.path,
            "flags": str(sys.flags),
            "modules of the suite": sorted(name for name, module in sys.modules.items() if is_of_suite(module)),
            "tools": sorted(name for name in sys.modules if name.partition(".")[0] in tools),
            "main": (main.__name__, getattr(main, "__file__", None), sorted(vars(main)), "__mp_main__" in sys.modules),
            "signals": {each: str(signal.getsignal(each)) for each in signal.valid_signals()},
            "kernel": [status[each] for each in ("Umask", "SigBlk", "SigIgn", "SigCgt", "Cpus_allowed", "Threads")],
            "descriptors": sorted(
                masked(os.readlink(entry)) for entry in Path("/proc/self/fd").iterdir() if entry.exists()
            ),
            "standard": [os.fstat(each)[:2] for each in (0, 1, 2)],
            "limits": Path("/proc/self/limits").read_text(),
            "parents": (os.getppid(), os.getpgrp(), os.getsid(0), multiprocessing.parent_process().pid),
            "process": (current.daemon, bytes(current.authkey), multiprocessing.get_start_method()),
            "threads": [thread.name for thread in threading.enumerate()],
            "warnings": str(warnings.filters),
            "temporary": tempfile.gettempdir(),
            "excepthook": sys.excepthook.__name__,
        }

    def draw():
        return random.random(), next(tempfile._get_candidate_names())

    def add(queue, lock, number):
        with lock:
            queue.put(number)

    def fail():
        raise ValueError("boom")  # the line

    def crash():
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave():
        sys.exit(3)

    def wait():
        time.sleep(600)  # it hangs

    def start_another(connection):
        connection.send(call("spawn", is_warm))
"""

SUITE = """
    import multiprocessing
    import os
    import signal
    import subprocess
    import sys
    import wave
    from concurrent.futures import ThreadPoolExecutor

    import pytest
    import helpers
    from helpers import STARTS, call

    WARM = pytest.mark.parametrize("start", ["spawn", "forkserver"])

    def server():
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                is_own = int(open(f"/proc/{pid}/stat").read().split()[3]) == os.getpid()
                if is_own and "allranks.warm_server" in open(f"/proc/{pid}/cmdline").read():
                    found.append(int(pid))
            except OSError:
                pass
        return found

    def test_state(monkeypatch, tmp_path, capfd):
        monkeypatch.setenv("MASTER_PORT", "1")
        assert call("spawn", helpers.is_warm)
        monkeypatch.setenv("MASTER_PORT", "2")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["mine"])
        monkeypatch.syspath_prepend(tmp_path)
        cold, warm = (call(start, helpers.state) for start in ("cold", "spawn"))
        for name in cold:
            assert warm[name] == cold[name], name
        assert warm["environment"]["MASTER_PORT"] == "2"

    @WARM
    def test_works(start):
        assert call(start, helpers.is_warm)
        assert not call("cold", helpers.is_warm)

    def test_draws():
        assert len({number for _ in range(3) for number in call("spawn", helpers.draw)}) == 6

    @WARM
    def test_shared(start):
        context = multiprocessing.get_context(start)
        queue, lock = context.Queue(), context.Lock()
        processes = [context.Process(target=helpers.add, args=(queue, lock, number)) for number in range(3)]
        for process in processes:
            process.start()
        assert sorted(queue.get() for _ in processes) == [0, 1, 2]
        for process in processes:
            process.join()
            assert process.exitcode == 0

    @WARM
    def test_pool(start):
        with multiprocessing.get_context(start).Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
            assert pool.apply(helpers.is_warm)

    def test_threads():
        with ThreadPoolExecutor(3) as threads:
            assert all(threads.map(lambda _: call("spawn", helpers.is_warm), range(3)))

    @pytest.mark.parametrize("end", ["fail", "leave", "crash"])
    @WARM
    def test_ends(start, end):
        process = STARTS[start](target=getattr(helpers, end))
        process.start()
        process.join()
        assert process.exitcode == {"fail": 1, "leave": 3, "crash": -signal.SIGSEGV}[end]

    def test_stopped():
        process = STARTS["spawn"](target=helpers.wait)
        process.start()
        process.terminate()
        process.join()
        assert process.exitcode == -signal.SIGTERM

    def test_variable(monkeypatch):
        monkeypatch.setenv("MINE", "1")
        assert call("spawn", helpers.variable, "MINE") == (True, "1")
        monkeypatch.setenv("MINE", "2")
        assert call("spawn", helpers.variable, "MINE") == (False, "2")
        assert call("forkserver", helpers.variable, "MINE") == (False, "2")

    def test_variable_of_an_earlier_test():
        assert call("spawn", helpers.variable, "MINE") == (True, None)

    def test_server_killed():
        assert call("spawn", helpers.is_warm)
        first, = server()
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        assert call("spawn", helpers.is_warm)
        assert server() != [first]

    def test_process_of_a_fork():
        fork = multiprocessing.get_context("fork")
        reading, writing = fork.Pipe(False)
        process = fork.Process(target=helpers.start_another, args=(writing,))
        process.start()
        assert reading.recv() is False
        process.join()

    def test_cannot_be_imported():
        with pytest.raises(Exception, match="pickle"):
            STARTS["spawn"](target=lambda: 0).start()

    @pytest.mark.time_limit(2)
    def test_hang():
        process = STARTS["spawn"](target=helpers.wait)
        process.start()
        print(process.pid, *server(), flush=True)
        process.join()
"""


@pytest.fixture(scope="module")
def suite(run_once):
    files = {"helpers.py": HELPERS, "test_it.py": SUITE}
    return run_once("warm", files, isolation="job", launches_ranks=True, start_children="warm")


def case(suite, name):
    return next(case for title, case in suite.cases(0).items() if title == name)


def notices(suite, test):
    return [each.text for each in suite.all(Notice) if each.nodeid.endswith(f"::{test}")]


@pytest.mark.parametrize(
    "test",
    [
        "test_state",
        "test_works[spawn]",
        "test_works[forkserver]",
        "test_draws",
        "test_shared[spawn]",
        "test_shared[forkserver]",
        "test_pool[spawn]",
        "test_pool[forkserver]",
        "test_threads",
        "test_stopped",
        "test_variable_of_an_earlier_test",
        "test_server_killed",
        "test_process_of_a_fork",
        "test_cannot_be_imported",
    ],
)
def test_a_warm_process_behaves_like_a_cold_one(suite, test):
    assert case(suite, test).outcome == "passed", case(suite, test).text
    assert notices(suite, test) == []


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("end", "words"), [("fail", "raised ValueError: boom at suite/helpers.py:"), ("leave", "ended with exit status 3")]
)
def test_the_end_of_a_process_is_reported(suite, start, end, words):
    assert case(suite, f"test_ends[{start}-{end}]").outcome == "passed"
    (text,) = notices(suite, f"test_ends[{start}-{end}]")
    assert words in text


def test_a_crash_is_reported(suite):
    assert case(suite, "test_ends[spawn-crash]").outcome == "errored"
    assert "was killed by SIGSEGV" in case(suite, "test_ends[spawn-crash]").message


def test_a_different_variable_within_a_test_is_reported_once(suite):
    assert case(suite, "test_variable").outcome == "passed"
    (text,) = notices(suite, "test_variable")
    assert text.endswith("processes of the same test differ in MINE")


def test_a_hang_shows_the_line_of_the_process(suite):
    message = case(suite, "test_hang").message
    assert "helpers.py" in message
    assert " in wait" in message
    assert "warm_server" not in message


def test_no_process_outlives_the_rank(suite):
    # A fork that has just begun still looks like its server.
    pids = {*case(suite, "test_hang").stdout.split()}
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


TORCH_HELPERS = """
    import sys
    import numpy
    import torch

    def numbers():
        return torch.initial_seed(), torch.rand(1).item(), float(numpy.random.rand())

    def reduce(rank, store):
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        total = torch.tensor(rank + 1)
        torch.distributed.all_reduce(total)
        assert total == 3
        assert "wave" in sys.modules
"""

TORCH_SUITE = """
    import wave
    import torch.multiprocessing
    import helpers
    import torch_helpers

    def test_numbers():
        cold, first, second = (helpers.call(start, torch_helpers.numbers) for start in ("cold", "spawn", "forkserver"))
        assert helpers.call("spawn", helpers.is_warm)
        assert len({*cold, *first, *second}) == 9

    def test_spawn(tmp_path):
        torch.multiprocessing.spawn(torch_helpers.reduce, (tmp_path / "store",), nprocs=2)
"""


@pytest.mark.thorough
def test_generators_of_torch_and_numpy_are_reseeded_in_each_process(run_once):
    files = {"helpers.py": HELPERS, "torch_helpers.py": TORCH_HELPERS, "test_it.py": TORCH_SUITE}
    suite = run_once("warm-torch", files, launches_ranks=True, start_children="warm")
    for test in ("test_numbers", "test_spawn"):
        assert case(suite, test).outcome == "passed", case(suite, test).text


def test_packages_that_end_the_server_are_imported_by_each_process(run_agent, tmp_path):
    package = tmp_path / "packages" / "ending.py"
    package.parent.mkdir()
    package.write_text("import os, sys; sys.argv[0].endswith('warm_server.py') and os._exit(0)")
    files = {
        "conftest.py": f"import sys; sys.path.append({str(package.parent)!r})",
        "helpers.py": HELPERS,
        "test_it.py": """
            import ending
            import helpers

            def test_cold():
                assert [helpers.call("spawn", len, "two") for _ in range(2)] == [3, 3]
        """,
    }
    environment = {"PYTHONPATH": str(package.parent)}
    agent = run_agent(files, environment=environment, launches_ranks=True, start_children="warm")
    assert case(agent, "test_cold").outcome == "passed", case(agent, "test_cold").text
    (text,) = notices(agent, "test_cold")
    assert "ended while it imported their packages" in text


def test_a_package_with_threads_is_not_forked():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert warm_server._obstacle().startswith(b"its packages start")
    end.set()
    thread.join()
