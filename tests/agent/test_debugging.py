"""A debugger in one rank, on a terminal of its own, and ``breakpoint()`` without a terminal."""

import os
import pty
import select
import tty

import pytest
from agent_run import PATIENCE
from long_lists import quick

from allranks.protocol.records import NotRun, TestStarted


class Terminal:
    """The terminal of a user."""

    def __init__(self):
        self._own, self._theirs = pty.openpty()
        tty.setraw(self._theirs)
        self.path = os.ttyname(self._theirs)
        self.seen = ""

    def wait_for(self, text):
        while text not in self.seen:
            assert select.select([self._own], [], [], PATIENCE)[0], f"no {text!r} in {self.seen!r}"
            self.seen += os.read(self._own, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def type(self, line):
        self.wait_for("(rank 1) ")
        os.write(self._own, f"{line}\n".encode())

    def close(self):
        os.close(self._own)
        os.close(self._theirs)


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.close()


BREAK = """
    import torch.distributed as dist

    def test_stops():
        number = 40 + dist.get_rank()
        breakpoint()
        dist.barrier()
        assert number < 42
"""


def test_breakpoint_stops_its_rank_and_peers_continue(start_agent, terminal):
    agent = start_agent({"test_a.py": BREAK}, pdb_rank=1, pdb_terminal=terminal.path).go()
    terminal.type("p number")
    terminal.wait_for("41")
    terminal.type("number = 43")
    terminal.type("c")
    # It fails now, and there the debugger has it again.
    terminal.wait_for("AssertionError")
    terminal.type("p 'sum', number + 1")
    terminal.wait_for("44")
    terminal.type("q")
    assert agent.wait() == 0
    assert agent.outcomes("test_stops") == ("passed", "failed")


@pytest.mark.thorough
def test_a_peer_that_fails_waits_for_the_debugger(start_agent, terminal):
    tests = """
        import os, time
        import torch.distributed as dist

        def test_fails_elsewhere():
            breakpoint()
            if dist.get_rank() == 0:
                open(os.environ["WORDS"], "w").write("fails\\n")
                assert 0
    """
    limits = {"peer_grace": 0.1, "test": 1}
    agent = start_agent({"test_a.py": tests}, pdb_rank=1, pdb_terminal=terminal.path, limits=limits).go()
    assert agent.word() == "fails"
    terminal.type("time.sleep(1.5); 'long ' + 'after the grace'")
    terminal.wait_for("long after the grace")
    terminal.type("c")
    assert agent.wait() == 0
    assert agent.outcomes("test_fails_elsewhere") == ("failed", "passed")


LAUNCHER_STOPS = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestLauncher(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_stops(self):
            breakpoint()
"""


@pytest.mark.thorough
def test_a_rank_of_a_launcher_test_can_be_stopped(start_agent, terminal):
    agent = start_agent({"test_a.py": LAUNCHER_STOPS}, pdb_rank=1, pdb_terminal=terminal.path).go()
    terminal.type("p 'rank', self.rank")
    terminal.wait_for("('rank', 1)")
    terminal.type("c")
    assert agent.wait() == 0
    assert agent.outcomes("test_stops") == ("passed", "passed")


@pytest.mark.thorough
def test_quitting_the_debugger_fails_the_test(start_agent, terminal):
    agent = start_agent({"test_a.py": BREAK}, pdb_rank=1, pdb_terminal=terminal.path).go()
    terminal.type("q")
    assert agent.wait() == 0
    assert agent.outcomes("test_stops")[1] == "failed"
    assert "BdbQuit" in agent.cases(1)["test_stops"].message


NO_LIMIT = {"process_group": 1e6, "test": 1e6, "job": 1e6}


@pytest.mark.parametrize(
    ("test", "commands"),
    quick(
        1,
        [
            ("assert dist.get_rank() == 0\n    dist.barrier()", ["c"]),
            ("assert dist.get_rank() == 0\n    dist.barrier()", ["q"]),
            ("assert dist.get_rank() == 0\n    dist.recv(torch.ones(1), 1)", ["p 1", "c"]),
            ("breakpoint()\n    assert dist.get_rank() == 0\n    dist.all_reduce(torch.ones(1))", ["c", "c"]),
            ("breakpoint()\n    assert dist.get_rank() == 0\n    dist.all_reduce(torch.ones(1))", ["n", "n", "q"]),
            ("breakpoint()\n    dist.barrier()", ["q"]),
        ],
    ),
)
def test_peers_that_wait_are_stopped_once_the_debugged_rank_has_failed(start_agent, terminal, test, commands):
    suite = {"test_a.py": f"import torch\nimport torch.distributed as dist\n\ndef test_waits():\n    {test}\n"}
    agent = start_agent(suite, pdb_rank=1, pdb_terminal=terminal.path, limits=NO_LIMIT).go()
    for command in commands:
        terminal.type(command)
    assert agent.wait() == 0
    assert agent.outcomes("test_waits") == ("aborted", "failed")


FAILS_ELSEWHERE = """
    import os, time
    import pytest
    import torch.distributed as dist

    def hear():
        open(os.environ["WORDS"], "w").write("fails\\n")

    @pytest.fixture(scope="module")
    def stops_late():
        yield
        breakpoint()

    def test_stops_twice():
        breakpoint()
        if dist.get_rank() == 0:
            hear()
            assert 0
        number = 1
        number = 2
        assert number == 2

    def test_tears_down(stops_late):
        if dist.get_rank() == 0:
            hear()
            assert 0

    def test_last(): pass
"""
WAIT = "time.sleep(1.5); 'long ' + 'after the grace'"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("test", "commands"),
    quick(
        2,
        [
            ("test_stops_twice", ["n", "n", "c"]),
            ("test_stops_twice", ["tbreak 20", "c", "c"]),
            ("test_stops_twice", ["until 20", "c"]),
            ("test_stops_twice", ["s", "s", "c"]),
            ("test_tears_down", ["c"]),
        ],
    ),
)
def test_no_limit_ends_a_rank_at_a_later_stop(start_agent, terminal, test, commands):
    """Each stop lasts longer than the grace period of the peers."""
    limits = {"peer_grace": 0.1, "test": 1, "process_group": 0.9}
    agent = start_agent(
        {"test_a.py": FAILS_ELSEWHERE},
        pdb_rank=1,
        pdb_terminal=terminal.path,
        limits=limits,
        pytest_args=("-s", "-k", f"{test} or test_last"),
    ).go()
    assert agent.word() == "fails"
    for command in commands:
        terminal.type(WAIT)
        terminal.wait_for("long after the grace")
        terminal.type(command)
    assert agent.wait() == 0
    assert agent.outcomes(test) == ("failed", "passed")


@pytest.mark.parametrize(
    "test",
    quick(
        1,
        [
            "def test_stops():\n    breakpoint()\n",
            "import os\ndef test_stops():\n    assert os.environ['RANK'] == '0'\n",
            "import pytest\ndef test_stops():\n    with pytest.raises(Exception):\n        breakpoint(); 1 / 0\n",
            "import pytest\n@pytest.fixture\ndef stops():\n    breakpoint()\ndef test_stops(stops): pass\n",
            LAUNCHER_STOPS,
        ],
    ),
    ids=["breakpoint", "failure", "caught", "fixture", "launcher"],
)
def test_no_further_test_starts_after_the_user_has_quit(start_agent, terminal, test):
    files = {"test_a.py": test, "test_b.py": "def test_later(): pass\n"}
    agent = start_agent(files, pdb_rank=1, pdb_terminal=terminal.path).go()
    terminal.type("q")
    assert agent.wait() == 0
    assert [record.nodeid.rpartition("::")[2] for record in agent.all(TestStarted)] == ["test_stops"]
    (left_out,) = agent.all(NotRun)
    assert left_out.reason == "q in the debugger"
    assert [test.rpartition("::")[2] for test in left_out.tests] == ["test_later"]


@pytest.mark.parametrize("call", quick(1, ["breakpoint()", "import pdb; pdb.set_trace()"]))
def test_without_a_terminal_the_error_names_the_remedy(run_agent, call):
    agent = run_agent({"test_a.py": f"def test_stops():\n    {call}\n"})
    assert agent.outcomes("test_stops") == ("failed", "failed")
    message = agent.cases(1)["test_stops"].message
    assert "rank 1 has no terminal for breakpoint()" in message
    assert "--pdb-rank 1" in message


def test_a_custom_debugger_is_not_replaced(run_agent):
    agent = run_agent({"test_a.py": "def test_stops():\n    breakpoint()\n"}, environment={"PYTHONBREAKPOINT": "0"})
    assert agent.outcomes("test_stops") == ("passed", "passed")
