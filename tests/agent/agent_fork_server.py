"""A process that has imported torch and forks agents on request, so that a test does not import torch for each agent.

The forks run :func:`allranks.agent.supervisor.job.main`, as ``python -m allranks.agent`` does.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


class AgentForkServer:
    """The client of this process: starts agents, and returns their exit status."""

    def __init__(self):
        self._socket, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=theirs, start_new_session=True, env=environment
        )
        theirs.close()

    def start(self, arguments, environment, folder, stdin, stdout):
        """Fork an agent and return its process id."""
        request = json.dumps([arguments, environment, str(folder)]).encode()
        socket.send_fds(self._socket, [request], [stdin, stdout])
        return int(self._socket.recv(100))

    def exit_status(self, pid):
        """The exit status of an agent that has ended."""
        self._socket.send(json.dumps(pid).encode())
        return os.waitstatus_to_exitcode(int(self._socket.recv(100)))

    def close(self):
        self._socket.close()
        self._process.wait(20)


def serve(requests):
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 2)
        if not message:
            return
        request = json.loads(message)
        is_pid = isinstance(request, int)
        reply = os.waitpid(request, 0)[1] if is_pid else fork_agent(*request, descriptors, requests)
        requests.send(str(reply).encode())
        for descriptor in descriptors:
            os.close(descriptor)


def fork_agent(arguments, environment, folder, descriptors, requests):
    pid = os.fork()
    if pid == 0:
        become_agent(arguments, environment, folder, descriptors, requests)
    return pid


def become_agent(arguments, environment, folder, descriptors, requests):
    from allranks.agent.gangs import forks
    from allranks.agent.supervisor.job import main

    requests.close()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    forks.start_process = fork_server
    main(arguments)


def fork_server(sockets, environment, log):
    """Start a fork server as a fork that has already imported torch, instead of a new interpreter."""
    from allranks.agent.collect.fork_server import main

    pid = os.fork()
    if pid == 0:
        keep = {socket_.fileno() for socket_ in sockets} | {log, 0, 1, 2}
        for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if descriptor not in keep:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # exec would reset handlers
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(environment)
        if "TORCH_VERSION" in environment:
            sys.modules["torch"].__version__ = environment["TORCH_VERSION"]
        main([str(socket_.fileno()) for socket_ in sockets])
    return pid


if __name__ == "__main__":
    import pytest  # noqa: F401 - agents import it
    import torch.distributed  # noqa: F401 - agents import it

    serve(socket.socket(fileno=0))
