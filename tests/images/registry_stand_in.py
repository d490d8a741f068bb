"""A minimal container registry for pushing and pulling an image (OCI distribution specification)."""

import hashlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Registry(ThreadingHTTPServer):
    """On loopback, where daemons speak HTTP.

    Attributes:
        manifests: Type and content, by repository and tag or digest.
        pushed: Repositories and tags, in the order in which they came.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.pushed: list[str] = []

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving() -> Iterator[Registry]:
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever)
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        self._answer(with_body=True)

    def do_HEAD(self):
        self._answer(with_body=False)

    def _answer(self, *, with_body):
        _, _, *parts = urlsplit(self.path).path.split("/")
        if parts == [""]:
            return self._send(200)
        repository, kind, name = "/".join(parts[:-2]), parts[-2], parts[-1]
        if kind == "blobs":
            found = ("application/octet-stream", self.server.blobs[name]) if name in self.server.blobs else None
        else:
            found = self.server.manifests.get((repository, name))
        if found is None:
            return self._send(404)
        return self._send(200, found[1], with_body=with_body, content_type=found[0], digest=_digest(found[1]))

    def do_POST(self):
        place = f"{urlsplit(self.path).path}{secrets.token_hex(8)}"
        self.server.uploads[place] = b""
        self._send(202, location=place)

    def do_PATCH(self):
        place = urlsplit(self.path).path
        self.server.uploads[place] += self._body()
        self._send(202, location=place, received=len(self.server.uploads[place]))

    def do_PUT(self):
        url = urlsplit(self.path)
        if url.path in self.server.uploads:
            content = self.server.uploads.pop(url.path) + self._body()
            [digest] = parse_qs(url.query)["digest"]
            self.server.blobs[digest] = content
            return self._send(201, digest=digest)
        _, _, *name, _, reference = url.path.split("/")
        content = self._body()
        for known in (reference, _digest(content)):
            self.server.manifests["/".join(name), known] = (self.headers["Content-Type"], content)
        self.server.pushed.append(f"{'/'.join(name)}:{reference}")
        return self._send(201, digest=_digest(content))

    def _body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status, content=b"", *, with_body=True, content_type="", location="", digest="", received=0):
        self.send_response(status)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Length", str(len(content)))
        if content_type:
            self.send_header("Content-Type", content_type)
        if location:
            self.send_header("Location", location)
        if received:
            self.send_header("Range", f"0-{received - 1}")
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if with_body:
            self.wfile.write(content)


def _digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
