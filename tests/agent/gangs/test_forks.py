"""Leftover processes of gangs, and fork servers that fail or send invalid data."""

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
from allranks.agent.gangs.forks import ForkServer, ForkServerError, RankRegistry
from allranks.agent.gangs.local_ranks import open_rank
from allranks.agent.job_end import JobEnd, StopRequestedError
from allranks.agent.orphans import Mark
from allranks.agent.program import FinalResult, Finish, Program, SessionEnded, StartRanks, parse_reply, parse_start
from allranks.protocol.config import Folders, NodeConfig
from allranks.protocol.records import AgentFailed, Imported, Notice

SECRET = replace(CONFIG, node_config=NodeConfig(node=0, leader="127.0.0.1", port=1, token="secret"))  # noqa: S106 - no real secret


class FakeProcesses:
    """Replaces the kernel's view of ranks and of the processes that they start, in their sessions or in others."""

    def __init__(self, monkeypatch):
        self.sessions, self._environments = {}, {}
        monkeypatch.setattr(linux, "children", lambda: frozenset(self.sessions))
        monkeypatch.setattr(linux, "session_of", self.sessions.get)
        monkeypatch.setattr(linux, "variables_of", lambda pid: self._environments[pid])

    def add(self, pid, session, gang=None):
        """Add a process, with the mark of a gang's rank 0 unless it emptied its environment."""
        variables = {} if gang is None else Mark.of_gang(gang).environment(0)
        self._environments[pid] = ["=".join(variable) for variable in variables.items()]
        self.sessions[pid] = session

    def end(self, *pids):
        for pid in pids:
            del self.sessions[pid]


SERVER = 10
A, B, C = (Mark.of_gang(number) for number in (1, 2, 3))


@pytest.fixture
def processes(monkeypatch):
    processes = FakeProcesses(monkeypatch)
    processes.add(SERVER, SERVER)
    return processes


@pytest.fixture
def registry():
    return RankRegistry(SERVER)


def start(registry, processes, mark, *pids):
    """Start a gang of these ranks."""
    with registry.expecting(mark):
        for pid in pids:
            processes.add(pid, pid, int(mark.owner))
        registry.register(mark, pids)


def end_gang(registry, processes, mark, *pids):
    """End a gang of these ranks; return what they left behind."""
    processes.end(*pids)
    return registry.leftovers_of(mark, pids)


def test_ended_ranks_and_the_fork_server_are_no_leftovers(processes, registry):
    start(registry, processes, A, 100, 200)
    assert registry.leftovers_of(A, [100, 200]) == set()


def test_all_other_children_are_leftovers_of_the_last_gang(processes, registry):
    start(registry, processes, A, 100)
    processes.add(101, 100)
    processes.add(102, 102)
    assert end_gang(registry, processes, A, 100) == {101, 102}


@pytest.mark.parametrize("gang", [1, None])
def test_processes_in_the_sessions_of_ended_ranks_are_leftovers(processes, registry, gang):
    start(registry, processes, A, 100)
    start(registry, processes, B, 200)
    processes.add(101, 100, gang)
    processes.add(201, 200, 2)
    assert end_gang(registry, processes, A, 100) == {101}
    processes.end(101)
    assert end_gang(registry, processes, B, 200) == {201}


def test_processes_with_the_mark_of_ended_ranks_are_leftovers(processes, registry):
    start(registry, processes, A, 100)
    start(registry, processes, B, 200)
    for pid, gang in ((101, 1), (102, 1), (201, 2)):
        processes.add(pid, pid, gang)
    assert end_gang(registry, processes, A, 100) == {101, 102}


def test_the_mark_takes_precedence_over_the_session(processes, registry):
    start(registry, processes, A, 100)
    start(registry, processes, B, 200)
    processes.add(201, 100, 2)  # its session has the process id of a rank that has ended
    assert end_gang(registry, processes, A, 100) == set()


def test_a_late_process_of_an_ended_gang_is_a_leftover_of_the_next_one(processes, registry):
    start(registry, processes, A, 100)
    start(registry, processes, B, 200)
    start(registry, processes, C, 300)
    assert end_gang(registry, processes, A, 100) == set()
    processes.add(101, 101, 1)
    assert end_gang(registry, processes, B, 200) == {101}


def test_a_process_without_mark_and_session_is_a_leftover_of_the_last_gang(processes, registry):
    start(registry, processes, A, 100)
    start(registry, processes, B, 200)
    processes.add(500, 500)
    assert end_gang(registry, processes, A, 100) == set()
    with registry.expecting(C):
        assert end_gang(registry, processes, B, 200) == set()
        registry.register(C, [])
    assert end_gang(registry, processes, C) == {500}


def test_a_rank_of_a_running_gang_is_no_leftover(processes, registry):
    start(registry, processes, A, 100)
    start(registry, processes, B, 200)
    assert end_gang(registry, processes, A, 100) == set()


@pytest.mark.parametrize("gang", [2, None])
def test_a_rank_that_another_worker_is_starting_is_no_leftover(processes, registry, gang):
    start(registry, processes, A, 100)
    processes.add(101, 100, 1)
    with registry.expecting(B):
        processes.add(200, SERVER, gang)
        assert end_gang(registry, processes, A, 100) == {101}
        registry.register(B, [200])
    assert registry.leftovers_of(A, [100]) == set()


def test_a_gang_that_did_not_start_does_not_count_as_running(processes, registry):
    start(registry, processes, A, 100)
    with suppress(OSError), registry.expecting(B):
        raise OSError
    processes.add(500, 500)
    assert end_gang(registry, processes, A, 100) == {500}


def test_a_second_call_returns_only_new_leftovers(processes, registry):
    start(registry, processes, A, 100)
    processes.add(101, 100, 1)
    assert end_gang(registry, processes, A, 100) == {101}
    processes.end(101)
    processes.add(102, 102, 1)
    assert registry.leftovers_of(A, [100]) == {102}


def test_a_process_that_cannot_be_killed_is_a_leftover_of_one_gang(processes, registry):
    start(registry, processes, A, 100)
    processes.add(500, 500)
    assert end_gang(registry, processes, A, 100) == {500}
    start(registry, processes, B, 200)
    assert end_gang(registry, processes, B, 200) == set()
    processes.end(500)
    assert registry.leftovers_of(B, [200]) == set()
    processes.add(500, 500)  # another process with its number
    assert registry.leftovers_of(B, [200]) == {500}


PRELUDE = """
import json, os, signal, socket, sys, time
control, handover = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
lines = control.makefile("rb")
request = json.loads(lines.readline())
def reply(*message):
    control.sendall(json.dumps(message).encode() + b"\\n")
"""


@pytest.fixture
def end():
    end = JobEnd()
    yield end
    end.close()


@pytest.fixture
def start_server(tmp_path, monkeypatch):
    """Starts a Python program instead of a fork server."""
    servers = []

    def start(program):
        def start_process(sockets, environment, _log):
            numbers = [end.fileno() for end in sockets]
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


def test_replies_arrive_in_order_until_the_server_ends(start_server, end):
    server = start_server(
        """
reply("Imported", {"torch": "2.13", "seconds": 1.0})
reply("Notice", {"text": "hello"})
reply("Program", {"tests": ["a"]})
"""
    )
    replies = list(server.replies(end))
    assert replies == [Imported(torch="2.13", seconds=1.0), Notice(text="hello"), Program(tests=("a",))]
    assert server.torch == "2.13"
    assert server.describe_exit() == "ended with exit status 0"


def test_the_fork_server_gets_no_secrets(start_server, end):
    [notice] = start_server('reply("Notice", {"text": json.dumps(request)})').replies(end)
    start = parse_start(notice.text.encode())
    assert start.config == replace(SECRET, node_config=replace(SECRET.node_config, token=""))


def test_a_server_killed_for_memory_is_described_as_such(start_server, end, monkeypatch):
    kills = iter([3, 4])
    monkeypatch.setattr(linux, "killed_for_memory", lambda: next(kills))
    server = start_server("os.kill(os.getpid(), 9)")
    assert list(server.replies(end)) == []
    assert server.describe_exit() == "was killed by the kernel's out-of-memory killer"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ('control.sendall(b"hello\\n")', "sent a line that is not JSON"),
        ('reply("Program", {"tests": 3})', "sent a line that has '3' as tests of Program"),
        ('reply("StartRanks", {})', "sent a line that is of an unknown kind"),
    ],
)
def test_an_invalid_reply_is_a_fork_server_error(start_server, end, program, why):
    with pytest.raises(ForkServerError, match=why):
        list(start_server(f"{program}\ntime.sleep(60)").replies(end))


@pytest.mark.thorough
def test_the_fork_server_reports_an_invalid_request():
    with ExitStack() as stack:
        own, its, handover = (stack.enter_context(end) for end in (*socket.socketpair(), socket.socket()))
        numbers = (its.fileno(), handover.fileno())
        command = [sys.executable, "-m", "allranks.agent.collect.fork_server", *map(str, numbers)]
        own.sendall(b'["ServerStart", {"supervisor": "me"}]\n')
        done = subprocess.run(command, pass_fds=numbers, capture_output=True, text=True, check=False)
        failure = parse_reply(own.recv(1 << 16))
    assert isinstance(failure, AgentFailed)
    assert failure.message.startswith("the supervisor's request ")
    assert (done.returncode, done.stderr) == (1, "")


def test_an_endless_line_is_a_fork_server_error(start_server, end, monkeypatch):
    monkeypatch.setattr(forks, "LINE_LIMIT", 1 << 20)
    with pytest.raises(ForkServerError, match="a line of more than"):
        list(start_server('while True: control.sendall(b"x" * 65536)').replies(end))


def test_a_line_in_parts_is_joined(start_server, end):
    program = """
data = json.dumps(["Notice", {"text": "x" * 300000}]).encode() + b"\\n"
for start in range(0, len(data), 7001):
    control.sendall(data[start:start + 7001])
"""
    [notice] = start_server(program).replies(end)
    assert notice == Notice(text="x" * 300000)


def test_data_of_a_child_of_the_server_is_ignored(start_server, end):
    program = """
if os.fork() == 0:
    reply("Notice", {"text": "forged"})
    os._exit(0)
os.wait()
reply("Notice", {"text": "true"})
"""
    assert list(start_server(program).replies(end)) == [Notice(text="true")]


def test_the_servers_end_is_seen_while_a_child_keeps_the_connection_open(start_server, end):
    server = start_server("if os.fork() == 0: time.sleep(60)\nos._exit(3)")
    assert list(server.replies(end)) == []
    assert server.describe_exit() == "ended with exit status 3"


def test_a_server_killed_by_a_signal_is_described_by_the_signal(start_server, end):
    server = start_server("os.kill(os.getpid(), signal.SIGSEGV)")
    assert list(server.replies(end)) == []
    assert server.describe_exit().startswith("was killed by SIGSEGV")


def test_waiting_for_replies_times_out(start_server, end):
    with pytest.raises(ForkServerError, match="does not answer"):
        list(start_server("signal.signal(signal.SIGRTMAX - 1, signal.SIG_IGN)\ntime.sleep(60)").replies(end, 0.2))


def test_waiting_for_replies_ends_with_the_job(start_server, end):
    end.request_stop()
    with pytest.raises(StopRequestedError):
        list(start_server("time.sleep(60)").replies(end))


REQUEST = StartRanks(ranks=(0, 1), gang=1)


def start_ranks(server, end):
    with ExitStack() as undo:
        ranks = [open_rank(number, None, undo) for number in REQUEST.ranks]
        server.start_ranks(REQUEST, ranks, end)


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        ('reply("Forked", {"error": "no more processes"})', OSError, "no more processes"),
        ('reply("Forked", {"pids": [1]})', OSError, "other ranks than requested"),
        ("os._exit(5)", ForkServerError, "ended with exit status 5"),
        ("os.kill(os.getpid(), 9)", ForkServerError, "was killed by SIGKILL"),
    ],
)
def test_the_error_for_a_failed_fork_has_the_reason(start_server, end, answer, error, why):
    server = start_server(f"lines.readline()\n{answer}\ntime.sleep(60)")
    with pytest.raises(error, match=why):
        start_ranks(server, end)


def test_a_failed_pidfd_open_closes_each_descriptor_once(start_server, end, monkeypatch):
    before = set(Path("/proc/self/fd").iterdir())
    server = start_server(f'lines.readline()\nreply("Forked", {{"pids": [{os.getpid()}, -1]}})\ntime.sleep(60)')
    opened = set(Path("/proc/self/fd").iterdir())
    closed = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor)))
    with pytest.raises(OSError, match="Invalid argument"):
        start_ranks(server, end)
    assert len(closed) == len(set(closed)) > 8
    assert set(Path("/proc/self/fd").iterdir()) == opened >= before


def test_starting_ranks_after_the_servers_end_is_an_error(start_server, end):
    server = start_server("os._exit(5)")
    list(server.replies(end))
    with pytest.raises(ForkServerError, match="ended with exit status 5"):
        start_ranks(server, end)


def test_a_server_that_ends_with_an_unread_request_is_an_error(start_server, end):
    server = start_server(
        'reply("Notice", {"text": "ready"})\nimport select\nselect.select([control], [], [])\nos._exit(5)'
    )
    assert next(server.replies(end)) == Notice(text="ready")
    with pytest.raises(ForkServerError, match="ended with exit status 5"):
        start_ranks(server, end)


MANY = Finish(
    tests=tuple(FinalResult(nodeid=f"test_many.py::test[{number}]", is_bad=False) for number in range(100_000))
)
IGNORE_STACKS_SIGNAL = "signal.signal(signal.SIGRTMAX - 1, signal.SIG_IGN)\n"


def test_a_request_with_a_hundred_thousand_tests_arrives_complete(start_server, end):
    program = (
        'reply("SessionEnded", {"own": 0, "status": len(json.loads(lines.readline())[1]["tests"])})\ntime.sleep(60)'
    )
    assert start_server(program).finish(MANY, end) == ([], SessionEnded(own=0, status=100_000))


@pytest.mark.thorough
def test_a_server_that_does_not_read_times_out(start_server, end):
    server = start_server(f"{IGNORE_STACKS_SIGNAL}time.sleep(60)")
    with pytest.raises(ForkServerError, match="does not answer"):
        server.finish(MANY, end, 0.2)


def test_a_server_that_does_not_read_does_not_delay_the_end_of_the_job(start_server, end):
    server = start_server("time.sleep(60)")
    end.request_stop()
    with pytest.raises(StopRequestedError):
        server.finish(MANY, end)


@pytest.mark.thorough
def test_a_server_that_ends_within_a_request_has_no_session_end(start_server, end):
    server = start_server("control.recv(1000)\nos._exit(5)")
    assert server.finish(MANY, end) == ([], None)
    assert server.describe_exit() == "ended with exit status 5"


@pytest.mark.thorough
def test_the_server_can_report_and_read_at_the_same_time(start_server, end):
    program = """
for number in range(2000):
    reply("Notice", {"text": "x" * 1000})
reply("SessionEnded", {"own": 0, "status": len(json.loads(lines.readline())[1]["tests"])})
time.sleep(60)
"""
    records, ended = start_server(program).finish(MANY, end)
    assert (len(records), ended) == (2000, SessionEnded(own=0, status=100_000))


def test_a_server_that_does_not_read_its_configuration_does_not_delay_the_end_of_the_job(
    start_server, end, monkeypatch
):
    monkeypatch.setitem(globals(), "PRELUDE", "import time\n")
    monkeypatch.setitem(globals(), "CONFIG", replace(CONFIG, pytest_args=("x" * 1_000_000,)))
    server = start_server("time.sleep(60)")
    end.request_stop()
    with pytest.raises(StopRequestedError):
        list(server.replies(end))


def test_records_before_an_early_exit_are_returned(start_server, end):
    server = start_server('lines.readline()\nreply("Notice", {"text": "oh"})\nos._exit(5)')
    assert server.finish(Finish(), end) == ([Notice(text="oh")], None)
    assert server.describe_exit() == "ended with exit status 5"


def test_concurrent_calls_describe_the_same_exit(start_server, end, monkeypatch):
    server = start_server("os._exit(5)")
    list(server.replies(end))
    reap, both, exits = linux.reap, threading.Barrier(2), []

    def reap_at_once(*arguments):
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return reap(*arguments)

    monkeypatch.setattr(linux, "reap", reap_at_once)
    threads = [threading.Thread(target=lambda: exits.append(server.describe_exit())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exits == ["ended with exit status 5"] * 2


def test_records_of_hooks_are_returned_with_the_session_end(start_server, end):
    server = start_server(
        'lines.readline()\nreply("Notice", {"text": "late"})\nreply("SessionEnded", {"status": 1, "own": 0})'
    )
    assert server.finish(Finish(), end) == ([Notice(text="late")], SessionEnded(status=1, own=0))


def test_close_kills_a_server_that_does_not_end(start_server):
    server = start_server("time.sleep(60)")
    assert server.close() == -signal.SIGKILL
    assert server.close() == -signal.SIGKILL
