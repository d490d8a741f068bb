"""Whose a child of the supervisor is, and what becomes of a fork server that makes no sense."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from agent_run import CONFIG

from allranks.agent import linux
from allranks.agent.gangs import forks
from allranks.agent.gangs.forks import Family, ForkServer, ForkServerError
from allranks.agent.gangs.local_ranks import open_ends
from allranks.agent.job_end import HangupError, JobEnd
from allranks.agent.orphans import Mark
from allranks.agent.program import Finish, Program, SessionEnded, Settled, StartRanks, parse_reply, parse_start
from allranks.protocol.config import Folders, NodeConfig
from allranks.protocol.records import AgentFailed, Imported, Notice

SECRET = replace(CONFIG, node_config=NodeConfig(node=0, leader="127.0.0.1", port=1, token="secret"))  # noqa: S106 - none is asked


class Nation:
    """Ranks that lead sessions, and processes in their sessions and out of them, as the kernel would tell of them."""

    def __init__(self, monkeypatch):
        self.sessions, self._environments = {}, {}
        monkeypatch.setattr(linux, "children", lambda: frozenset(self.sessions))
        monkeypatch.setattr(linux, "session_of", self.sessions.get)
        monkeypatch.setattr(linux, "variables_of", lambda pid: self._environments[pid])

    def add(self, pid, session, gang=None):
        """A process, which bears the mark of a gang's rank 0 unless it emptied its environment."""
        variables = {} if gang is None else Mark.of_gang(gang).environment(0)
        self._environments[pid] = ["=".join(each) for each in variables.items()]
        self.sessions[pid] = session

    def end(self, *pids):
        for pid in pids:
            del self.sessions[pid]


SERVER = 10
A, B, C = (Mark.of_gang(number) for number in (1, 2, 3))


@pytest.fixture
def nation(monkeypatch):
    nation = Nation(monkeypatch)
    nation.add(SERVER, SERVER)
    return nation


@pytest.fixture
def family():
    return Family(SERVER)


def start(family, nation, mark, *pids):
    """Start a gang of these ranks."""
    with family.expecting(mark):
        for pid in pids:
            nation.add(pid, pid, int(mark.owner))
        family.join(mark, pids)


def end_gang(family, nation, mark, *pids):
    """End a gang of these ranks; return what they left behind."""
    nation.end(*pids)
    return family.left_by(mark, pids)


def test_ranks_that_have_ended_and_the_fork_server_are_left_by_nobody(nation, family):
    start(family, nation, A, 100, 200)
    assert family.left_by(A, [100, 200]) == set()


def test_whatever_else_there_is_was_left_by_the_last_gang(nation, family):
    start(family, nation, A, 100)
    nation.add(101, 100)
    nation.add(102, 102)
    assert end_gang(family, nation, A, 100) == {101, 102}


@pytest.mark.parametrize("gang", [1, None])
def test_while_other_gangs_live_what_stayed_in_the_sessions_of_these_ranks_was_left_by_them(nation, family, gang):
    start(family, nation, A, 100)
    start(family, nation, B, 200)
    nation.add(101, 100, gang)
    nation.add(201, 200, 2)
    assert end_gang(family, nation, A, 100) == {101}
    nation.end(101)
    assert end_gang(family, nation, B, 200) == {201}


def test_while_other_gangs_live_what_bears_the_mark_of_these_ranks_was_left_by_them(nation, family):
    start(family, nation, A, 100)
    start(family, nation, B, 200)
    for pid, gang in ((101, 1), (102, 1), (201, 2)):
        nation.add(pid, pid, gang)
    assert end_gang(family, nation, A, 100) == {101, 102}


def test_a_mark_counts_for_more_than_a_session(nation, family):
    start(family, nation, A, 100)
    start(family, nation, B, 200)
    nation.add(201, 100, 2)  # its session has the number of a rank that has ended
    assert end_gang(family, nation, A, 100) == set()


def test_what_comes_late_from_a_gang_that_has_ended_was_left_by_the_next_that_ends(nation, family):
    start(family, nation, A, 100)
    start(family, nation, B, 200)
    start(family, nation, C, 300)
    assert end_gang(family, nation, A, 100) == set()
    nation.add(101, 101, 1)
    assert end_gang(family, nation, B, 200) == {101}


def test_a_process_without_a_mark_in_no_session_of_a_rank_was_left_by_the_last_gang(nation, family):
    start(family, nation, A, 100)
    start(family, nation, B, 200)
    nation.add(500, 500)
    assert end_gang(family, nation, A, 100) == set()
    with family.expecting(C):
        assert end_gang(family, nation, B, 200) == set()
        family.join(C, [])
    assert end_gang(family, nation, C) == {500}


def test_a_rank_of_a_gang_that_lives_was_left_by_nobody(nation, family):
    start(family, nation, A, 100)
    start(family, nation, B, 200)
    assert end_gang(family, nation, A, 100) == set()


@pytest.mark.parametrize("gang", [2, None])
def test_a_rank_that_another_lane_has_just_started_was_left_by_nobody(nation, family, gang):
    start(family, nation, A, 100)
    nation.add(101, 100, 1)
    with family.expecting(B):
        nation.add(200, SERVER, gang)
        assert end_gang(family, nation, A, 100) == {101}
        family.join(B, [200])
    assert family.left_by(A, [100]) == set()


def test_a_gang_that_did_not_start_keeps_nobody_from_being_ended(nation, family):
    start(family, nation, A, 100)
    with suppress(OSError), family.expecting(B):
        raise OSError
    nation.add(500, 500)
    assert end_gang(family, nation, A, 100) == {500}


def test_to_ask_again_gives_what_is_new(nation, family):
    start(family, nation, A, 100)
    nation.add(101, 100, 1)
    assert end_gang(family, nation, A, 100) == {101}
    nation.end(101)
    nation.add(102, 102, 1)
    assert family.left_by(A, [100]) == {102}


def test_what_cannot_be_ended_was_left_by_one_gang_alone(nation, family):
    start(family, nation, A, 100)
    nation.add(500, 500)
    assert end_gang(family, nation, A, 100) == {500}
    start(family, nation, B, 200)
    assert end_gang(family, nation, B, 200) == set()
    nation.end(500)
    assert family.left_by(B, [200]) == set()
    nation.add(500, 500)  # another process with its number
    assert family.left_by(B, [200]) == {500}


PRELUDE = """
import json, os, signal, socket, sys, time
control, handover = (socket.socket(fileno=int(each)) for each in sys.argv[1:])
lines = control.makefile("rb")
request = json.loads(lines.readline())
def tell(*message):
    control.sendall(json.dumps(message).encode() + b"\\n")
"""


@pytest.fixture
def end():
    end = JobEnd()
    yield end
    end.close()


@pytest.fixture
def start_server(tmp_path, monkeypatch):
    """Starts some other program in a fork server's place."""
    servers = []

    def start(program):
        def start_process(sockets, environment, _log):
            numbers = [each.fileno() for each in sockets]
            command = [sys.executable, "-c", PRELUDE + program, *map(str, numbers)]
            process = subprocess.Popen(command, pass_fds=numbers, env=environment, stdin=subprocess.DEVNULL)
            process.returncode = 0
            return process.pid

        monkeypatch.setattr(forks, "start_process", start_process)
        for name in ("code", "results", "shared"):
            (tmp_path / name).mkdir()
        folders = Folders(code=tmp_path / "code", results=tmp_path / "results", shared=tmp_path / "shared")
        servers.append(ForkServer(SECRET, folders, dict(os.environ), 2))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()
        server._control.close()
        server._handover.close()
        os.close(server._pidfd)


def test_what_a_fork_server_tells_comes_in_its_order_until_it_ends(start_server, end):
    server = start_server(
        """
tell("Imported", {"torch": "2.13", "seconds": 1.0})
tell("Notice", {"text": "hello"})
tell("Program", {"tests": ["a"]})
"""
    )
    told = list(server.replies(end))
    assert told == [Imported(torch="2.13", seconds=1.0), Notice(text="hello"), Program(tests=("a",))]
    assert server.torch == "2.13"
    assert server.ended() == "ended with exit status 0"


def test_a_fork_server_is_told_no_secret(start_server, end):
    [told] = start_server('tell("Notice", {"text": json.dumps(request)})').replies(end)
    start = parse_start(told.text.encode())
    assert start.config == replace(SECRET, node_config=replace(SECRET.node_config, token=""))


def test_a_fork_server_that_the_out_of_memory_killer_ended_says_so(start_server, end, monkeypatch):
    kills = iter([3, 4])
    monkeypatch.setattr(linux, "killed_for_memory", lambda: next(kills))
    server = start_server("os.kill(os.getpid(), 9)")
    assert list(server.replies(end)) == []
    assert server.ended() == "was killed by the kernel's out-of-memory killer"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ('control.sendall(b"hello\\n")', "tells a line that is not JSON"),
        ('tell("Program", {"tests": 3})', "tells a line that has '3' as tests of Program"),
        ('tell("StartRanks", {})', "tells a line that is of an unknown kind"),
    ],
)
def test_what_makes_no_sense_is_a_fork_server_error(start_server, end, program, why):
    with pytest.raises(ForkServerError, match=why):
        list(start_server(f"{program}\ntime.sleep(60)").replies(end))


def test_a_fork_server_that_is_asked_for_nonsense_says_so():
    with ExitStack() as stack:
        own, its, handover = (stack.enter_context(each) for each in (*socket.socketpair(), socket.socket()))
        numbers = (its.fileno(), handover.fileno())
        command = [sys.executable, "-m", "allranks.agent.collect.fork_server", *map(str, numbers)]
        own.sendall(b'["ServerStart", {"supervisor": "me"}]\n')
        done = subprocess.run(command, pass_fds=numbers, capture_output=True, text=True, check=False)
        told = parse_reply(own.recv(1 << 16))
    assert isinstance(told, AgentFailed)
    assert told.message.startswith("what the supervisor asked for ")
    assert (done.returncode, done.stderr) == (1, "")


def test_a_line_without_end_is_a_fork_server_error(start_server, end, monkeypatch):
    monkeypatch.setattr(forks, "LINE_LIMIT", 1 << 20)
    with pytest.raises(ForkServerError, match="a line of more than"):
        list(start_server('while True: control.sendall(b"x" * 65536)').replies(end))


def test_lines_come_whole_however_they_are_torn(start_server, end):
    program = """
data = json.dumps(["Notice", {"text": "x" * 300000}]).encode() + b"\\n"
for start in range(0, len(data), 7001):
    control.sendall(data[start:start + 7001])
"""
    [told] = start_server(program).replies(end)
    assert told == Notice(text="x" * 300000)


def test_what_a_child_of_the_fork_server_tells_is_left_out(start_server, end):
    program = """
if os.fork() == 0:
    tell("Notice", {"text": "forged"})
    os._exit(0)
os.wait()
tell("Notice", {"text": "true"})
"""
    assert list(start_server(program).replies(end)) == [Notice(text="true")]


def test_a_child_that_keeps_the_connection_open_does_not_keep_the_end_from_being_seen(start_server, end):
    server = start_server("if os.fork() == 0: time.sleep(60)\nos._exit(3)")
    assert list(server.replies(end)) == []
    assert server.ended() == "ended with exit status 3"


def test_a_fork_server_that_a_signal_has_killed_is_named_by_it(start_server, end):
    server = start_server("os.kill(os.getpid(), signal.SIGSEGV)")
    assert list(server.replies(end)) == []
    assert server.ended().startswith("was killed by SIGSEGV")


def test_waiting_for_replies_ends_after_the_timeout(start_server, end):
    with pytest.raises(ForkServerError, match="does not answer"):
        list(start_server("signal.signal(signal.SIGRTMAX - 1, signal.SIG_IGN)\ntime.sleep(60)").replies(end, 0.2))


def test_the_end_of_the_job_comes_first(start_server, end):
    end.hang_up()
    with pytest.raises(HangupError):
        list(start_server("time.sleep(60)").replies(end))


REQUEST = StartRanks(ranks=(0, 1), gang=1)


def start_ranks(server, end):
    with ExitStack() as undo:
        ends = [open_ends(number, None, undo) for number in REQUEST.ranks]
        return server.start_ranks(REQUEST, ends, end)


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        ('tell("Forked", {"error": "no more processes"})', OSError, "no more processes"),
        ('tell("Forked", {"pids": [1]})', OSError, "other ranks than it was asked for"),
        ("os._exit(5)", ForkServerError, "ended with exit status 5"),
        ("os.kill(os.getpid(), 9)", ForkServerError, "was killed by SIGKILL"),
    ],
)
def test_ranks_that_were_not_forked_are_an_error_that_says_why(start_server, end, answer, error, why):
    server = start_server(f"lines.readline()\n{answer}\ntime.sleep(60)")
    with pytest.raises(error, match=why):
        start_ranks(server, end)


def test_ranks_that_cannot_be_watched_are_an_error_and_nothing_is_closed_twice(start_server, end, monkeypatch):
    before = set(Path("/proc/self/fd").iterdir())
    server = start_server(f'lines.readline()\ntell("Forked", {{"pids": [{os.getpid()}, -1]}})\ntime.sleep(60)')
    opened = set(Path("/proc/self/fd").iterdir())
    closed = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor)))
    with pytest.raises(OSError, match="Invalid argument"):
        start_ranks(server, end)
    assert len(closed) == len(set(closed)) > 8
    assert set(Path("/proc/self/fd").iterdir()) == opened >= before


def test_a_fork_server_that_is_gone_already_is_an_error_that_says_how(start_server, end):
    server = start_server("os._exit(5)")
    list(server.replies(end))
    with pytest.raises(ForkServerError, match="ended with exit status 5"):
        start_ranks(server, end)


def test_a_fork_server_that_ends_with_what_it_was_asked_unread_is_an_error_that_says_how(start_server, end):
    server = start_server(
        'tell("Notice", {"text": "ready"})\nimport select\nselect.select([control], [], [])\nos._exit(5)'
    )
    assert next(server.replies(end)) == Notice(text="ready")
    with pytest.raises(ForkServerError, match="ended with exit status 5"):
        start_ranks(server, end)


MANY = Finish(tests=tuple(Settled(nodeid=f"test_many.py::test[{number}]", is_bad=False) for number in range(100_000)))
DEAF = "signal.signal(signal.SIGRTMAX - 1, signal.SIG_IGN)\n"


def test_a_request_about_a_hundred_thousand_tests_arrives_whole(start_server, end):
    program = (
        'tell("SessionEnded", {"own": 0, "status": len(json.loads(lines.readline())[1]["tests"])})\ntime.sleep(60)'
    )
    assert start_server(program).finish(MANY, end) == ([], SessionEnded(own=0, status=100_000))


def test_a_fork_server_that_reads_no_request_is_an_error_after_the_timeout(start_server, end):
    server = start_server(f"{DEAF}time.sleep(60)")
    with pytest.raises(ForkServerError, match="does not answer"):
        server.finish(MANY, end, 0.2)


def test_a_fork_server_that_reads_no_request_does_not_keep_the_job_from_ending(start_server, end):
    server = start_server("time.sleep(60)")
    end.hang_up()
    with pytest.raises(HangupError):
        server.finish(MANY, end)


def test_a_fork_server_that_dies_within_a_request_is_an_error_that_says_how(start_server, end):
    server = start_server("control.recv(1000)\nos._exit(5)")
    assert server.finish(MANY, end) == ([], None)
    assert server.ended() == "ended with exit status 5"


def test_a_fork_server_gets_a_request_that_it_reads_while_it_reports(start_server, end):
    program = """
for number in range(2000):
    tell("Notice", {"text": "x" * 1000})
tell("SessionEnded", {"own": 0, "status": len(json.loads(lines.readline())[1]["tests"])})
time.sleep(60)
"""
    records, ended = start_server(program).finish(MANY, end)
    assert (len(records), ended) == (2000, SessionEnded(own=0, status=100_000))


def test_a_fork_server_that_does_not_read_its_configuration_does_not_keep_the_job_from_ending(
    start_server, end, monkeypatch
):
    monkeypatch.setitem(globals(), "PRELUDE", "import time\n")
    monkeypatch.setitem(globals(), "CONFIG", replace(CONFIG, pytest_args=("x" * 1_000_000,)))
    server = start_server("time.sleep(60)")
    end.hang_up()
    with pytest.raises(HangupError):
        list(server.replies(end))


def test_what_a_fork_server_says_before_it_ends_instead_of_its_session_is_heard(start_server, end):
    server = start_server('lines.readline()\ntell("Notice", {"text": "oh"})\nos._exit(5)')
    assert server.finish(Finish(), end) == ([Notice(text="oh")], None)
    assert server.ended() == "ended with exit status 5"


def test_whoever_asks_how_it_ended_gets_the_same_answer(start_server, end, monkeypatch):
    server = start_server("os._exit(5)")
    list(server.replies(end))
    reap, both, told = linux.reap, threading.Barrier(2), []

    def reap_at_once(*arguments):
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return reap(*arguments)

    monkeypatch.setattr(linux, "reap", reap_at_once)
    threads = [threading.Thread(target=lambda: told.append(server.ended())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == ["ended with exit status 5"] * 2


def test_what_hooks_have_to_say_at_the_end_comes_with_how_it_ended(start_server, end):
    server = start_server(
        'lines.readline()\ntell("Notice", {"text": "late"})\ntell("SessionEnded", {"status": 1, "own": 0})'
    )
    assert server.finish(Finish(), end) == ([Notice(text="late")], SessionEnded(status=1, own=0))


def test_close_ends_a_fork_server_that_does_not(start_server):
    server = start_server("time.sleep(60)")
    assert server.close() == -signal.SIGKILL
    assert server.close() == -signal.SIGKILL
