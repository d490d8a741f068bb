"""A proxy before act's artifact server, which is older than the actions: it mends two things and no other.

*Signed addresses.* act signs an address like ``sig=<base64>=&expires=… %2B0000 UTC&…``. The Azure client in
actions/upload-artifact 6 and newer cuts a value at its second ``=``, and sends ``+`` as it stands, which the server
reads as a blank (nektos/act#6021): both are put back.

*The type of an artifact.* actions/upload-artifact 7 sends it with the name, and the server refuses a request with a
field that it does not know: the field is left out.
"""

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote, unquote_plus

CHUNK = 1 << 20
OF_ONE_CONNECTION = {"connection", "content-length", "keep-alive", "transfer-encoding"}
UNKNOWN = "mime_type"


@contextmanager
def artifact_proxy() -> Iterator[tuple[int, str]]:
    """The port on which act's server has to listen, and the address that actions have to use."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    handler = type("Proxy", (_Proxy,), {"server_port": port})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield port, f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def mended(address: str) -> str:
    """A signed address as act has signed it."""
    path, _, query = address.partition("?")
    return f"{path}?{'&'.join(map(_mended_pair, query.split('&')))}" if query else path


def known(body: bytes) -> bytes:
    """A request for a new artifact, without what the server does not know."""
    return json.dumps({name: value for name, value in json.loads(body).items() if name != UNKNOWN}).encode()


def _mended_pair(pair: str) -> str:
    name, _, value = pair.partition("=")
    match name:
        case "sig":
            value = unquote_plus(value).rstrip("=")
            return f"sig={quote(value + '=' * (-len(value) % 4))}"
        case "expires":
            return f"expires={quote(re.sub(r'(?<= ) (?=[0-9]{4} )', '+', unquote_plus(value)))}"
        case _:
            return pair


class _Proxy(BaseHTTPRequestHandler):
    """One request; the connection ends with it."""

    server_port: int

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def do_PUT(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_ONE_CONNECTION}
        server = http.client.HTTPConnection("127.0.0.1", self.server_port)
        try:
            server.request(self.command, mended(self.path), self._body(), headers)
            answer = server.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in OF_ONE_CONNECTION:
                    self.send_header(name, value)
            self.end_headers()
            while chunk := answer.read(CHUNK):
                self.wfile.write(chunk)
        finally:
            server.close()

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return known(body) if self.path.endswith("/CreateArtifact") else body

    def log_message(self, *_arguments: object) -> None:
        """Nothing: act has a log."""
