"""A job of the docker engine while it runs: what its agent says is heard, and it is ended, whatever happens."""

import os
import selectors
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException

from allranks.engine.archive import unpack
from allranks.engine.docker_requests import ROOT
from allranks.engine.frames import STDOUT, FrameReader
from allranks.engine.protocol import EventSink, JobExit
from allranks.engine.stream import EventStream
from allranks.errors import EngineError

STOP_GRACE = 8
"""Seconds for an agent to stop its ranks (three seconds at the most) and to write its results."""

FAILURES = (DockerException, requests.RequestException, OSError)
"""What comes of a daemon that refuses, or is not there any more."""


class DockerJob:
    """An agent in a container."""

    def __init__(self, client: docker.APIClient, identifier: str, limit: float) -> None:
        self._client = client
        self._identifier = identifier
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._attached: Any = None
        self._stream = EventStream()
        self._frames = FrameReader()
        self._is_over = True
        self._bell = os.eventfd(0)

    def attach_and_start(self) -> None:
        """Attach first, so that nothing of what the agent says is lost, then start."""
        self._attached = self._client.attach_socket(
            self._identifier, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        )
        self._client.start(self._identifier)
        self._is_over = False

    @property
    def _socket(self) -> socket.socket:
        """What the SDK hands out is a file around the socket for some transports, the socket itself for others."""
        wrapped: socket.socket = getattr(self._attached, "_sock", self._attached)
        return wrapped

    def go(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.go`."""
        self._deadline = time.monotonic() + self._limit
        try:
            self._socket.sendall(b"go\n")
        except OSError:
            # The container has ended already; `wait` finds out how.
            return

    def wait(self, sink: EventSink) -> JobExit:
        """See :meth:`allranks.engine.protocol.RunningJob.wait`."""
        timed_out = not self._pump(lambda: self._deadline, sink)
        if timed_out:
            self.stop()
        with as_engine_error("The daemon lost a job."):
            state = self._exited_state()
        self._is_over = True
        return JobExit(
            status=state["ExitCode"],
            timed_out=timed_out,
            out_of_memory=bool(state["OOMKilled"]),
            output=self._stream.output or state["Error"],
        )

    def _exited_state(self) -> dict[str, Any]:
        self._client.wait(self._identifier, timeout=STOP_GRACE)
        state: dict[str, Any] = self._client.inspect_container(self._identifier)["State"]
        return state

    def hang_up(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.hang_up`."""
        self._deadline = min(self._deadline, time.monotonic() + STOP_GRACE)
        self._end_stdin()
        os.eventfd_write(self._bell, 1)  # whoever reads has a new deadline

    def stop(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.stop`."""
        if self._is_over:
            return
        self._end_stdin()
        deadline = time.monotonic() + STOP_GRACE
        if not self._pump(lambda: deadline, lambda _event: None):
            self._kill()
        self._is_over = True

    def _end_stdin(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _kill(self) -> None:
        try:
            self._client.kill(self._identifier)
        except FAILURES:
            # Not running any more, or no daemon: removal, now or by a later reap, does the rest.
            return

    def collect(self, results: Path) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.collect`."""
        try:
            pieces, _ = self._client.get_archive(self._identifier, f"{ROOT}/results")
            unpack(pieces, results)
        except (*FAILURES, tarfile.TarError) as error:
            msg = f"The results of a job could not be copied to {results}."
            raise EngineError(
                msg, why=str(error), remedy="Check the daemon, and space and permissions here."
            ) from error

    def close(self) -> None:
        """Stop what runs and let go of the connection."""
        self.stop()
        os.close(self._bell)
        if self._attached is not None:
            connection = self._socket
            response = getattr(self._attached, "_response", None)
            if response is not None:
                # Left to the garbage collector, it finds its file closed and says so on standard error (Python 3.13).
                response.close()
            self._attached.close()
            connection.close()

    def _pump(self, deadline: Callable[[], float], sink: EventSink) -> bool:
        """Read the attach stream to its end, the container's; False when the deadline, which may change, came first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while (remaining := deadline() - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(remaining)}
                if self._bell in ready:
                    os.eventfd_read(self._bell)
                if self._socket.fileno() not in ready:
                    continue
                data = self._receive()
                if not data:
                    return True
                self._take(data, sink)
        return False

    def _receive(self) -> bytes:
        """What the daemon has to say; nothing when the connection is lost, since it is asked about the end anyway."""
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    def _take(self, data: bytes, sink: EventSink) -> None:
        for stream, payload in self._frames.feed(data):
            if stream != STDOUT:
                self._stream.note(payload)
                continue
            for event in self._stream.feed(payload):
                sink(event)


@contextmanager
def as_engine_error(what: str) -> Iterator[None]:
    """Have the daemon's failures in this block be an :class:`EngineError` of that first sentence."""
    try:
        yield
    except FAILURES as error:
        why = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
        remedy = "See the daemon's log; `allranks clean` removes what may be left."
        raise EngineError(what, why=str(why), remedy=remedy) from error
