"""A debugger in one rank, on a terminal of its own; and what ``breakpoint()`` says where there is none."""

import os
import pty
import select
import tty

import pytest
from agent_run import PATIENCE


class Terminal:
    """What a person at a terminal sees and types."""

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


def test_breakpoint_stops_in_its_rank_and_the_peers_go_on(start_agent, terminal):
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


def test_a_rank_of_a_launcher_test_can_be_stopped(start_agent, terminal):
    tests = """
        from torch.testing._internal.common_distributed import MultiProcessTestCase

        class TestLauncher(MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def test_stops(self):
                breakpoint()
    """
    agent = start_agent({"test_a.py": tests}, pdb_rank=1, pdb_terminal=terminal.path).go()
    terminal.type("p 'rank', self.rank")
    terminal.wait_for("('rank', 1)")
    terminal.type("c")
    assert agent.wait() == 0
    assert agent.outcomes("test_stops") == ("passed", "passed")


def test_who_quits_fails_the_test(start_agent, terminal):
    agent = start_agent({"test_a.py": BREAK}, pdb_rank=1, pdb_terminal=terminal.path).go()
    terminal.type("q")
    assert agent.wait() == 0
    assert agent.outcomes("test_stops")[1] == "failed"
    assert "BdbQuit" in agent.cases(1)["test_stops"].message


@pytest.mark.parametrize("call", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_without_a_terminal_a_sentence_says_what_to_do(run_agent, call):
    agent = run_agent({"test_a.py": f"def test_stops():\n    {call}\n"})
    assert agent.outcomes("test_stops") == ("failed", "failed")
    message = agent.cases(1)["test_stops"].message
    assert "rank 1 has no terminal for breakpoint()" in message
    assert "--pdb-rank 1" in message


def test_a_debugger_of_the_users_own_is_left_alone(run_agent):
    agent = run_agent({"test_a.py": "def test_stops():\n    breakpoint()\n"}, environment={"PYTHONBREAKPOINT": "0"})
    assert agent.outcomes("test_stops") == ("passed", "passed")
