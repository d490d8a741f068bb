"""Processes that a test starts: where they hang, how they die, and which processes they leave behind."""

import re

import pytest

from allranks.protocol.records import LeftBehind

HELPERS = """
    import os
    import signal
    import time

    def hang(number):
        time.sleep(0 if number == 0 else 600)  # the child hangs

    def die(number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
"""

SUITE = """
    import multiprocessing
    import os
    import subprocess
    import sys
    import textwrap
    import time

    import pytest
    import torch.multiprocessing as mp
    import helpers

    pytestmark = pytest.mark.time_limit(4)

    def run(method, target):
        context = multiprocessing.get_context(method)
        children = [context.Process(target=target, args=(number,)) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0]

    def test_forks_hang():
        mp.start_processes(helpers.hang, nprocs=2, start_method="fork")

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_hangs(method):
        run(method, helpers.hang)

    PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import helpers; helpers.hang(1)"

    def test_program_hangs():
        folder = os.path.dirname(helpers.__file__)
        environment = {**os.environ, "RANK": "1", "LOCAL_RANK": "1"}
        subprocess.run([sys.executable, "-c", PROGRAM, folder], env=environment, start_new_session=True)

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_dies(method):
        run(method, helpers.die)

    def fails_while_a_peer_hangs(number):
        if number == 0:
            raise ValueError("boom")
        time.sleep(600)

    def test_one_fails_and_one_hangs():
        process = multiprocessing.get_context("fork").Process
        children = [process(target=fails_while_a_peer_hangs, args=(number,)) for number in range(2)]
        for child in children:
            child.start()
        children[1].join()

    WORKER = '''
    import os
    if os.environ["RANK"] == "1":
        raise ValueError("boom")
    '''

    @pytest.mark.time_limit(60)
    def test_torchrun(tmp_path):
        worker = tmp_path / "worker.py"
        worker.write_text(textwrap.dedent(WORKER))
        options = ["--nproc-per-node=2", "--master-port=0", str(worker)]
        subprocess.run([sys.executable, "-m", "torch.distributed.run", *options], check=True)

    def test_server_serves():
        with multiprocessing.get_context("forkserver").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]

    def test_child_of_a_server_stays():
        multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,), daemon=True).start()
        # The test ends during this time.
        multiprocessing.process._children.clear()
"""


@pytest.fixture(scope="module")
def children(run_once):
    files = {"test_children.py": SUITE, "helpers.py": HELPERS}
    return run_once("children", files, launches_ranks=True, isolation="test")


LINE = next(number for number, line in enumerate(HELPERS.splitlines(), start=1) if "the child hangs" in line)


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test_forks_hang", "child process (rank 1)"),
        ("test_hangs[spawn]", "child process SpawnProcess-2"),
        ("test_hangs[forkserver]", "child process ForkServerProcess-2"),
        ("test_program_hangs", "child process (rank 1)"),
    ],
)
def test_a_hang_reports_the_line_and_the_stack_of_a_hanging_child(children, test, name):
    case = children.cases(0)[test]
    assert case.outcome == "timed_out"
    assert case.message.startswith(
        "not finished after 4 s (@pytest.mark.time_limit), in the call of this test; it was in "
    )
    assert re.search(
        re.escape(f"; {name} was in suite/helpers.py:{LINE} in hang, ") + r"\d\.\d s after its start$", case.message
    )
    assert f"--- {name}: pid " in case.text
    assert f"--- {name}: pid " in (children.results / "rank-0.stacks.txt").read_text()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_signal_that_killed_a_child_is_in_the_message(children, method):
    case = children.cases(0)[f"test_dies[{method}]"]
    assert case.outcome == "failed"
    kind = {"fork": "Fork", "spawn": "Spawn", "forkserver": "ForkServer"}[method]
    assert case.message.startswith(f"child process {kind}Process-2 was killed by SIGKILL; assert ")


def test_the_exception_of_a_torchrun_worker_is_the_first_failure(children):
    case = children.cases(0)["test_torchrun"]
    assert case.message.startswith("child process (rank 1) raised ValueError: boom at ")
    assert "worker.py:4; subprocess.CalledProcessError: " in case.message
    assert case.text.startswith("Traceback (most recent call last):")


def test_a_hang_names_the_child_that_had_failed_before(children):
    message = children.cases(0)["test_one_fails_and_one_hangs"].message
    assert "; child process ForkProcess-1 raised ValueError: boom at " in message
    assert " before; child process ForkProcess-2 was in " in message


def test_only_processes_of_tests_that_were_not_stopped_are_reported(children):
    assert [record.nodeid.rpartition("::")[2] for record in children.all(LeftBehind)] == [
        "test_child_of_a_server_stays"
    ]
    children.assert_nothing_left()
