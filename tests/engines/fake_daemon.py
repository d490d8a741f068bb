"""A fake of ``docker.APIClient`` that records requests."""

import socket
from types import SimpleNamespace

import requests
from docker.errors import APIError, NotFound

from allranks.engines.agent_output import SEPARATOR
from allranks.engines.docker import DockerEngine
from allranks.images.leftovers import LABEL
from allranks.protocol.records import ContainerEnded, Record, encode

ID = "c0ffee"
"""The container of node 0; those of other nodes have the number appended."""


class Wire:
    """Both ends of a container's attached socket."""

    def __init__(self):
        self.ours, self.daemon = socket.socketpair()

    def close(self):
        self.ours.close()
        self.daemon.close()


class FakeClient:
    """The methods of ``docker.APIClient`` that the engine uses.

    Args:
        failures: What a call raises, by its name, or by its name and the container that it is about.
    """

    def __init__(self, failures=None):
        self.calls = []
        self.failures = failures or {}
        self.states = {}
        self.networks_of = {}
        self.listed, self.volumes_listed, self.networks_listed = [], [], []
        self.archives = {}
        self.network = "none"
        self.strangers = []
        self._wires = {}
        self._created = 0

    def wire(self, identifier=ID):
        if identifier not in self._wires:
            self._wires[identifier] = Wire()
        return self._wires[identifier]

    @property
    def ours(self):
        return self.wire().ours

    @property
    def daemon(self):
        return self.wire().daemon

    def close(self):
        for wire in self._wires.values():
            wire.close()

    def _call(self, name, *arguments):
        self.calls.append((name, *arguments))
        keys = [name, *((name, argument) for argument in arguments if isinstance(argument, str))]
        for key in keys:
            if key in self.failures:
                raise self.failures[key]

    @property
    def names(self):
        return [call[0] for call in self.calls]

    def info(self):
        """The daemon's info, which is not recorded."""
        return {"NCPU": 8, "CpuCfsQuota": True, "SecurityOptions": ["name=seccomp,profile=default"]}

    def create_network(self, **request):
        self._call("create_network", request["name"])
        self.network = request["name"]
        return {"Id": "net"}

    def create_host_config(self, **options):
        return options

    def create_container(self, **request):
        identifier = f"{ID}-{self._created}" if self._created else ID
        self._created += 1
        self._call("create", identifier, request)
        return {"Id": identifier}

    def put_archive(self, identifier, path, data):
        self._call("put_archive", identifier, path)
        for _ in data:
            pass

    def attach_socket(self, identifier, params):
        self._call("attach", identifier, params["stream"])
        return self.wire(identifier).ours

    def start(self, identifier):
        self._call("start", identifier)

    def wait(self, identifier, timeout, condition="not-running"):
        self._call("wait", identifier, timeout)
        if condition == "removed":
            self.failures["inspect", identifier] = NotFound("404", explanation="No such container")

    def inspect_container(self, identifier):
        self._call("inspect", identifier)
        state = {
            "ExitCode": 0,
            "OOMKilled": False,
            "Error": "",
            "Paused": False,
            "Running": False,
            **self.states.get(identifier, {}),
        }
        networks = self.networks_of.get(identifier, [self.network])
        return {"State": state, "NetworkSettings": {"Networks": {name: {} for name in networks}}}

    def unpause(self, identifier):
        self._call("unpause", identifier)

    def kill(self, identifier):
        self._call("kill", identifier)

    def get_archive(self, identifier, path):
        self._call("get_archive", identifier, path)
        return (piece for piece in [self.archives.get(path, b"")]), {}

    def remove_container(self, identifier, v, force):
        self._call("remove", identifier, v, force)
        self.listed = [item for item in self.listed if item["Id"] != identifier]

    def images(self, filters):
        """No leftovers of builds; see test_builds."""
        assert filters["dangling"]
        return []

    def containers(self, all, filters):  # noqa: A002 - the SDK's name
        if filters == {"label": LABEL}:
            return []
        self._call("containers", all, filters)
        return self.listed

    def volumes(self, filters):
        self._call("volumes", filters)
        return {"Volumes": self.volumes_listed}

    def networks(self, filters):
        self._call("networks", filters)
        return self.networks_listed

    def remove_volume(self, name):
        self._call("remove_volume", name)

    def inspect_network(self, name):
        assert name == "net"
        return {"Containers": {stranger: {"Name": "/somebody"} for stranger in self.strangers}}

    def disconnect_container_from_network(self, container, network, force):
        self._call("disconnect", container, network, force)

    def remove_network(self, name):
        self._call("remove_network", name)


def engine_of(client: FakeClient) -> DockerEngine:
    return DockerEngine(SimpleNamespace(api=client))


def refusal(status: int = 500, text: str = "no") -> APIError:
    response = requests.Response()
    response.status_code = status
    return APIError(text, response=response, explanation=text)


def frame(stream: int, payload: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(payload).to_bytes(4, "big") + payload


def end_agent(client: FakeClient, identifier: str = ID, *, status: int = 0, memory_kills: int = 0) -> None:
    """As the container init does."""
    say(client, ContainerEnded(status=status, memory_kills=memory_kills), identifier)


def say(client: FakeClient, record: Record, identifier: str = ID) -> None:
    """As a program in the container does."""
    client.wire(identifier).daemon.sendall(frame(1, b"\n" + SEPARATOR + encode(record) + b"\n"))


def ignore(_node, _said):
    pass
