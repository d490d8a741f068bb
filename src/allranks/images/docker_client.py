"""Connects to the Docker daemon."""

import socket
import struct

import docker
import requests
from docker.errors import DockerException
from docker.utils import kwargs_from_env, parse_host

from allranks.errors import EngineDeniedError, EngineError

FAILURES = (DockerException, requests.RequestException, OSError)
"""The exceptions of the client's methods."""

_LOCAL = "http+unix://"
"""The prefix of a Unix socket's address."""


def connect(*, timeout: int = 60) -> docker.DockerClient:
    """Connect to the daemon of ``DOCKER_HOST``, by default the local one.

    Raises:
        EngineDeniedError: This user may not use the daemon's socket.
        EngineError: No daemon answers.
    """
    try:
        settings = kwargs_from_env()
        _check_socket(str(parse_host(settings.get("base_url"))), timeout)
        client = docker.DockerClient(version="auto", timeout=timeout, **settings)
    except FAILURES as error:
        if isinstance(error, PermissionError):
            msg = "This user may not use Docker."
            remedy = "Join its group (sudo usermod -aG docker $USER, then log in again), or use --engine process."
            raise EngineDeniedError(msg, why=str(error), remedy=remedy) from error
        msg = "No Docker daemon answers."
        remedy = "Install and start one (https://docs.docker.com/engine/install), or use --engine process."
        raise EngineError(msg, why=str(error), remedy=remedy) from error
    return client


def _check_socket(address: str, timeout: float) -> None:
    """Check that a server listens at a local address, since the SDK leaks sockets that it cannot connect."""
    if not address.startswith(_LOCAL):
        return
    path = address.removeprefix(_LOCAL)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), path) from error


def is_daemon_local() -> bool:
    """Whether the daemon is on this host, and this process is not in one of its containers.

    The kernel reports the server's process id in our pid namespace, or 0 if it is outside (``SO_PEERCRED``, unix(7)).
    """
    address = str(parse_host(kwargs_from_env().get("base_url")))
    if not address.startswith(_LOCAL):
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address.removeprefix(_LOCAL))
        except OSError:  # the next request to the daemon reports it
            return True
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return bool(pid)
