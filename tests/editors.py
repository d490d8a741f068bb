"""The editor's side of a debugger: VS Code's client of debugpy, and PyCharm's server of its own debugger.

Each debugs the tests of a file with one breakpoint, reads a variable wherever a process stops there, and continues.
"""

import itertools
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote


@dataclass(frozen=True)
class Breakpoint:
    """Where to stop, and the variable to read there."""

    file: Path
    line: int
    variable: str


@dataclass(frozen=True)
class Stop:
    """A process at the breakpoint.

    Attributes:
        process: Its name in the editor.
        place: Function, file name and line.
        value: The variable.
    """

    process: str
    place: tuple[str, str, int]
    value: str


@dataclass
class Debugged:
    """What the editor saw: the stops, the printed text, and the exit status of pytest."""

    stops: list[Stop] = field(default_factory=list)
    output: str = ""
    status: int | None = None


def debug_in_vscode(point: Breakpoint, environment: Mapping[str, str]) -> Debugged:
    """*Debug Test* of VS Code: its debug adapter launches pytest, and asks for a session for each process."""
    seen = Debugged()
    with subprocess.Popen(
        [sys.executable, "-m", "debugpy.adapter"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as adapter:
        assert adapter.stdin is not None
        assert adapter.stdout is not None
        launch = {
            "module": "pytest",
            "args": ["-p", "no:hypothesispytest", str(point.file)],
            "cwd": str(point.file.parent),
            "console": "internalConsole",
            "python": [sys.executable, "-Xfrozen_modules=off"],
            "justMyCode": True,
            "subProcess": True,
        }
        _Session(seen, point, "Python", adapter.stdin, adapter.stdout).follow("launch", launch)
        adapter.stdin.close()
    return seen


class _Session:
    """A connection in the debug adapter protocol."""

    def __init__(self, seen: Debugged, point: Breakpoint, name: str, sends: BinaryIO, receives: BinaryIO) -> None:
        self._seen, self._point, self._name = seen, point, name
        self._sends, self._receives = sends, receives
        self._numbers = itertools.count(1)
        self._thread = 0
        self._frame: Mapping[str, Any] = {}

    def follow(self, start: str, arguments: Mapping[str, Any]) -> None:
        """Start or attach, and answer every stop until the process has ended."""
        self._send("initialize", adapterID="python", pathFormat="path", linesStartAt1=True)
        self._send(start, **arguments)
        others = list[threading.Thread]()
        while header := self._receives.readline():
            self._receives.readline()
            message = json.loads(self._receives.read(int(header.split(b":")[1])))
            body = message.get("body", {})
            match message.get("event", message.get("command")):
                case "initialized":
                    lines = [{"line": self._point.line}]
                    self._send("setBreakpoints", source={"path": str(self._point.file)}, breakpoints=lines)
                    self._send("configurationDone")
                case "debugpyAttach":
                    others.append(threading.Thread(target=self._attach, args=(body,)))
                    others[-1].start()
                case "output" if body.get("category") == "stdout":
                    self._seen.output += body["output"]
                case "exited":
                    self._seen.status = body["exitCode"]
                case "terminated":
                    break
                case step:
                    self._look_around(step, body)
        for other in others:
            other.join()

    def _look_around(self, step: str, body: Mapping[str, Any]) -> None:
        match step:
            case "stopped":
                self._thread = body["threadId"]
                self._send("stackTrace", threadId=self._thread, levels=1)
            case "stackTrace":
                (self._frame,) = body["stackFrames"]
                self._send("evaluate", expression=self._point.variable, frameId=self._frame["id"])
            case "evaluate":
                place = (self._frame["name"], Path(self._frame["source"]["path"]).name, self._frame["line"])
                self._seen.stops.append(Stop(self._name, place, body["result"]))
                self._send("continue", threadId=self._thread)

    def _attach(self, configuration: Mapping[str, Any]) -> None:
        connect = configuration["connect"]
        with (
            socket.create_connection((connect["host"], connect["port"])) as connection,
            connection.makefile("rwb", buffering=0) as stream,
            connection.makefile("rb") as received,
        ):
            name = configuration["name"]
            _Session(self._seen, self._point, name, stream, received).follow("attach", configuration)

    def _send(self, command: str, **arguments: Any) -> None:
        message = {"seq": next(self._numbers), "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self._sends.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self._sends.flush()


# PyCharm's commands.
SET_BREAKPOINT, RUN, STOPPED, CONTINUE, EVALUATE, VERSION = 111, 101, 105, 106, 113, 501
STACK = r'thread id="(.*?)".*?frame id="(.*?)" name="(.*?)" file="(.*?)" line="(.*?)"'


def debug_in_pycharm(point: Breakpoint, environment: Mapping[str, str]) -> Debugged:
    """*Debug* of PyCharm: every process of pytest connects to it with the package pydevd-pycharm."""
    seen = Debugged()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, point, seen), daemon=True).start()
        port = server.getsockname()[1]
        options = ("--multiprocess", "--client", "127.0.0.1", "--port", str(port), "--module", "--file", "pytest")
        ended = subprocess.run(
            [sys.executable, "-m", "pydevd", *options, "-p", "no:hypothesispytest", str(point.file)],
            cwd=point.file.parent,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=150,
            check=False,
        )
    seen.output, seen.status = ended.stdout, ended.returncode
    return seen


def _accept(server: socket.socket, point: Breakpoint, seen: Debugged) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_follow, args=(connection, point, seen), daemon=True).start()


def _follow(connection: socket.socket, point: Breakpoint, seen: Debugged) -> None:
    numbers = itertools.count(1, 2)

    def send(command: int, *fields: object) -> None:
        connection.sendall("\t".join(map(str, (command, next(numbers), *fields))).encode() + b"\n")

    send(VERSION, "1", "UNIX", "ID")
    send(SET_BREAKPOINT, 1, "python-line", point.file, point.line, "None", "None", "None", "None", False, "NONE")
    send(RUN, "")
    frame: Sequence[str] = ()
    with connection, connection.makefile() as messages:
        for message in messages:
            command, _, *fields = message.rstrip("\n").split("\t")
            if int(command) == STOPPED:
                frame = _read(STACK, fields)
                send(EVALUATE, *frame[:2], "FRAME", point.variable, 1, "")
            elif int(command) == EVALUATE:
                thread, _, function, path, line = frame
                (value,) = _read(r'value="(.*?)"', fields)
                process = f"Process {thread.split('_')[1]}"  # pid_PID_id_NUMBER
                seen.stops.append(Stop(process, (function, Path(path).name, int(line)), unquote(value)))
                send(CONTINUE, thread)


def _read(pattern: str, fields: Sequence[str]) -> Sequence[str]:
    found = re.search(pattern, unquote(fields[-1] if len(fields) == 1 else " ".join(fields)), re.DOTALL)
    assert found is not None, fields
    return found.groups()
