"""A client of the Docker daemon."""

import socket
import struct

import docker
import requests
from docker.errors import DockerException
from docker.utils import kwargs_from_env, parse_host

from allranks.errors import EngineDeniedError, EngineError

FAILURES = (DockerException, requests.RequestException, OSError)
"""What a call of the client raises."""

_LOCAL = "http+unix://"
"""Begins the address of a socket on this host."""


def connect(*, timeout: int = 60) -> docker.DockerClient:
    """A client of the daemon that the environment names (``DOCKER_HOST``), or the local one.

    Raises:
        EngineDeniedError: The daemon's socket is closed to this user.
        EngineError: No daemon answers.
    """
    try:
        settings = kwargs_from_env()
        _knock(str(parse_host(settings.get("base_url"))), timeout)
        client = docker.DockerClient(version="auto", timeout=timeout, **settings)
    except FAILURES as error:
        if isinstance(error, PermissionError):
            msg = "This user may not use Docker."
            remedy = "Join its group (sudo usermod -aG docker $USER, then log in again), or use --engine process."
            raise EngineDeniedError(msg, why=str(error), remedy=remedy) from error
        msg = "No Docker daemon answers."
        remedy = "Install one (https://docs.docker.com/engine/install) and start it"
        raise EngineError(msg, why=str(error), remedy=f"{remedy}, or use --engine process.") from error
    return client


def _knock(address: str, timeout: float) -> None:
    """Check that a server listens at a local address: the SDK leaks a socket that it cannot connect."""
    if not address.startswith(_LOCAL):
        return
    path = address.removeprefix(_LOCAL)
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(timeout)
        try:
            door.connect(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), path) from error


def sees_daemon() -> bool:
    """Whether the daemon that the environment names is on this host, and this process in no container of it.

    Linux tells who listens at a socket by a process id of our own process namespace: it is 0 if the process is in none
    that we see (unix(7), ``SO_PEERCRED``).
    """
    address = str(parse_host(kwargs_from_env().get("base_url")))
    if not address.startswith(_LOCAL):
        return False
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.connect(address.removeprefix(_LOCAL))
        except OSError:  # whoever needs it finds out
            return True
        pid, _, _ = struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(pid)
