"""Debuggers with ``pytest --ranks N``: pdb in one rank, in the terminal of the session, and debugpy."""

import itertools
import json
import os
import pty
import select
import socket
import subprocess
import sys
import threading
import time

import pytest
from long_lists import quick

SUITE = """
import torch
import torch.distributed as dist

def test_sum(process_group, rank):
    tensor = torch.full((1,), float(rank))
    if rank == 1:
        breakpoint()
    dist.all_reduce(tensor)
    assert tensor.item() == {sum}
"""


@pytest.fixture
def debugged(tmp_path, environment_without_ranks):
    """``debugged(suite, ("(rank 1) ", "c"), ...)``: waits for texts, and types lines; returns the exit status."""

    def debug(suite, *steps):
        (tmp_path / "test_it.py").write_text(suite)
        environment = {**environment_without_ranks, "TMPDIR": str(tmp_path), "TERM": "dumb"}
        own, theirs = pty.openpty()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "--ranks=2", "--pdb-rank=1"]
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        ) as process:
            os.close(theirs)
            seen = ""
            for wanted, typed in steps:
                while wanted not in seen:
                    assert select.select([own], [], [], 120)[0], seen
                    seen += os.read(own, 4096).decode()
                seen = seen.partition(wanted)[2]
                os.write(own, f"{typed}\n".encode() if typed else b"")
            status = process.wait(60)
        os.close(own)
        return status

    return debug


@pytest.mark.parametrize(
    ("total", "ending"), [pytest.param(1, "1 passed", marks=pytest.mark.thorough), (5, "1 failed")]
)
def test_a_rank_stops_on_the_terminal_of_the_session(debugged, total, ending):
    steps = [("(rank 1) ", "p 'rank', rank"), ("('rank', 1)", "c")]
    if total != 1:
        steps += [("(rank 1) ", "p tensor.item()"), ("1.0", "c")]  # where it fails
    assert debugged(SUITE.format(sum=total), *steps, (ending, "")) == (total != 1)


FAILING = """
import torch
import torch.distributed as dist

def test_fails(process_group, rank):
    assert rank == 0
    dist.all_reduce(torch.ones(1))

def test_breaks(process_group, rank):
    breakpoint()
    dist.all_reduce(torch.ones(1))

def test_last(): pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("commands", "endings", "status"),
    quick(
        1,
        [
            (["c", "c"], ["1 failed, 2 passed"], 1),
            (["p rank", "c", "c"], ["1 failed, 2 passed"], 1),
            (["q"], ["Interrupted: stopped by q in the debugger", "1 failed in"], 2),
            (["c", "q"], ["Interrupted: stopped by q in the debugger", "2 failed in"], 2),
            (["\x04"], ["Interrupted: stopped by q in the debugger", "1 failed in"], 2),
        ],
    ),
    ids=str,
)
def test_a_session_continues_or_ends_with_the_debugger(debugged, commands, endings, status):
    steps = [*(("(rank 1) ", command) for command in commands), *((ending, "") for ending in endings)]
    assert debugged(FAILING, *steps) == status


class Editor:
    """The client side of the debug adapter protocol, as in VS Code.

    It sets a breakpoint in all processes, reads a variable at each stop, and continues.

    Args:
        port: Where debugpy listens.
        file: The file of the breakpoint.
        line: Its line.
        name: The variable.

    Attributes:
        stopped: The process ids of sessions in which the breakpoint has stopped a thread; 0 for the first process.
        values: The variable at each stop.
    """

    def __init__(self, port, file, line, name):
        self.stopped = []
        self.values = []
        self._breakpoint = (str(file), line)
        self._name = name
        self._attach(port, 0, {"justMyCode": True, "subProcess": True})

    def _attach(self, port, pid, arguments):
        threading.Thread(target=self._follow, args=(port, pid, arguments), daemon=True).start()

    def _follow(self, port, pid, arguments):
        with connect(port) as connection, connection.makefile("rb") as messages:
            sent = itertools.count(1)

            def send(command, **body):
                message = {"seq": next(sent), "type": "request", "command": command, "arguments": body}
                data = json.dumps(message).encode()
                connection.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))

            send("initialize", adapterID="test", pathFormat="path", linesStartAt1=True)
            send("attach", **arguments)
            while header := messages.readline():
                messages.readline()
                message = json.loads(messages.read(int(header.split(b":")[1])))
                body = message.get("body", {})
                match message.get("event", message.get("command")):
                    case "initialized":
                        file, line = self._breakpoint
                        send("setBreakpoints", source={"path": file}, breakpoints=[{"line": line}])
                        send("configurationDone")
                    case "debugpyAttach":
                        self._attach(body["connect"]["port"], body["subProcessId"], body)
                    case "terminated":
                        return
                    case "stopped":
                        self.stopped.append(pid)
                        thread = body["threadId"]
                        send("stackTrace", threadId=thread, levels=1)
                    case "stackTrace":
                        send("evaluate", expression=self._name, frameId=body["stackFrames"][0]["id"])
                    case "evaluate":
                        self.values.append(body["result"])
                        send("continue", threadId=thread)


def connect(port):
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "stops"),
    [pytest.param("", 1, marks=pytest.mark.thorough), ("--ranks=2 --ranks-timeout=1", 2)],
    ids=str,
)
def test_breakpoints_of_an_editor_stop_every_rank(tmp_path, environment_without_ranks, plugins, arguments, stops):
    file = tmp_path / "test_it.py"
    file.write_text("import time\n\ndef test_it(rank):\n    at = time.time()\n    assert at\n    time.sleep(2)\n")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {arguments}\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    debugpy = ("-Xfrozen_modules=off", "-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--wait-for-client")
    environment = {
        **environment_without_ranks,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([plugins, *sys.path]),
    }
    with (
        (tmp_path / "output").open("wb") as printed,
        subprocess.Popen(
            [sys.executable, *debugpy, "-m", "pytest", "-p", "no:hypothesispytest", f"{file}::test_it"],
            cwd=tmp_path,
            env=environment,
            stdout=printed,
        ) as process,
    ):
        editor = Editor(port, file, 5, "rank")
        process.wait(timeout=150)
    output = (tmp_path / "output").read_text()
    assert process.returncode == 0, output
    assert "1 passed" in output
    assert len(editor.stopped) == len(set(editor.stopped)) == stops
    assert (0 in editor.stopped) == (stops == 1)
    assert sorted(editor.values) == [str(rank) for rank in range(stops)]
