"""A daemon behind TLS, as one on another host is: whatever ends, the results come home over the same connections."""

import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from allranks.engines.base import FileCopy
from allranks.engines.docker import DockerEngine
from allranks.engines.package import package_files
from allranks.images.built_image import ensure_image
from allranks.images.docker_client import connect
from allranks.matrix.model import Image
from allranks.protocol.records import Finished, Passed, RankEnded

pytestmark = pytest.mark.docker

SUITE = """
import signal


def test_that_ends():
    pass


def test_that_never_ends():
    signal.pause()
"""


class Gate:
    """A server that takes TLS connections of one client and passes them on to the daemon's socket on this host.

    Args:
        context: With the server's certificate.
        daemon: Path of the socket.
    """

    def __init__(self, context: ssl.SSLContext, daemon: str) -> None:
        self._context = context
        self._daemon = daemon
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = "tcp://{}:{}".format(*self._server.getsockname())
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # whoever waits for a connection notices no other end
        self._server.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._server.accept()
                threading.Thread(target=self._pass_on, args=(plain,), daemon=True).start()

    def _pass_on(self, plain: socket.socket) -> None:
        with (
            suppress(OSError),
            self._context.wrap_socket(plain, server_side=True) as outer,
            socket.socket(socket.AF_UNIX) as inner,
        ):
            inner.connect(self._daemon)
            _join(outer, inner)


def _join(outer: ssl.SSLSocket, inner: socket.socket) -> None:
    """Pass on what either says until the inner one ends; by one thread, which is all that a TLS connection takes."""
    heard: list[socket.socket] = [outer, inner]
    while inner in heard:
        for source in select.select(heard, [], [])[0]:
            if data := source.recv(1 << 16):
                (inner if source is outer else outer).sendall(data)
            else:
                heard.remove(source)
                if source is outer:
                    inner.shutdown(socket.SHUT_WR)


@pytest.fixture
def behind_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker_client) -> Iterator[None]:  # noqa: ARG001
    """The environment names a daemon behind TLS, with certificates for both sides."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    client = authority.issue_cert("client@example.org")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    client.private_key_pem.write_to_path(tmp_path / "key.pem")
    client.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    daemon = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    with closing(Gate(context, daemon)) as gate:
        monkeypatch.setenv("DOCKER_HOST", gate.address)
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
        for bundle in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # which requests has go before those of a session
            monkeypatch.delenv(bundle, raising=False)
        yield


@pytest.fixture
def nothing_is_left(run_id, left_of):
    yield
    assert left_of(run_id) == []


@pytest.mark.usefixtures("nothing_is_left", "behind_tls")
def test_a_job_that_is_told_to_end_says_the_rest_and_leaves_its_results(make_spec, tmp_path):
    code, results, records = tmp_path / "code", tmp_path / "results", []
    (code / "suite").mkdir(parents=True)
    (code / "suite" / "test_endless.py").write_text(SUITE)
    results.mkdir()
    with closing(connect()) as client:
        image = Image(name="cpu", torch="2.13.0", packages=("numpy", "expecttest"))
        reference = ensure_image(image, root=tmp_path, client=client, progress=print).reference
        files = (FileCopy(source=code / "suite", target=Path("suite")),)
        spec = replace(make_spec(code=code, files=files), image=reference)

        def hang_up_at_first_outcome(_node, record):
            records.append(record)
            if isinstance(record, Passed | RankEnded):
                threading.Thread(target=job.request_stop).start()

        with DockerEngine(client, package_files()).start(spec) as job:
            job.go()
            ending = job.wait(hang_up_at_first_outcome)
            job.collect(results)
    assert not ending.timed_out
    assert isinstance(records[-1], Finished)
    assert (results / "agent.log").exists()
