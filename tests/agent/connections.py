"""Connections of this process with itself."""

import socket


def local_connection():
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        return here, server.accept()[0]
