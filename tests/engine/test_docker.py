"""The docker engine against a client that is a recorder: what it asks for, and every way out."""

import gc
import json
import socket
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import requests
from docker.errors import APIError, NotFound

from allranks.engine import docker as engine_docker
from allranks.engine.docker import (
    USER,
    DockerEngine,
    connect,
    container_environment,
    container_name,
    creation_request,
    gpu_settings,
    job_archive,
    keeper_arguments,
)
from allranks.engine.ownership import own_run
from allranks.engine.spec import Passthrough, Resources
from allranks.errors import EngineError

ID = "c0ffee"


class FakeClient:
    """What the engine uses of ``docker.APIClient``; a call named in `failures` raises what is given there."""

    def __init__(self, failures=None):
        self.calls = []
        self.failures = failures or {}
        self.state = {"ExitCode": 0, "OOMKilled": False, "Error": ""}
        self.listed, self.volumes_listed = [], []
        self.ours, self.daemon = socket.socketpair()

    def close(self):
        self.ours.close()
        self.daemon.close()

    def _call(self, name, *arguments):
        self.calls.append((name, *arguments))
        if name in self.failures:
            raise self.failures[name]

    @property
    def names(self):
        return [call[0] for call in self.calls]

    def create_host_config(self, **options):
        return options

    def create_container(self, **request):
        self._call("create", request)
        return {"Id": ID}

    def put_archive(self, identifier, path, _data):
        self._call("put_archive", identifier, path)

    def attach_socket(self, identifier, params):
        self._call("attach", identifier, params["stream"])
        return self.ours

    def start(self, identifier):
        self._call("start", identifier)

    def wait(self, identifier, timeout):
        self._call("wait", identifier, timeout)

    def inspect_container(self, identifier):
        self._call("inspect", identifier)
        return {"State": self.state}

    def kill(self, identifier):
        self._call("kill", identifier)

    def get_archive(self, identifier, path):
        self._call("get_archive", identifier, path)
        return [b""], {}

    def remove_container(self, identifier, v, force):
        self._call("remove", identifier, v, force)

    def containers(self, all, filters):  # noqa: A002 - the SDK's name
        self._call("containers", all, filters)
        return self.listed

    def volumes(self, filters):
        self._call("volumes", filters)
        return {"Volumes": self.volumes_listed}

    def remove_volume(self, name):
        self._call("remove_volume", name)


@pytest.fixture
def fake():
    with ExitStack() as stack:

        def make(**failures) -> FakeClient:
            client = FakeClient(failures)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def spec(make_spec):
    return make_spec(image="allranks/cpu:1")


def engine_of(client: FakeClient) -> DockerEngine:
    return DockerEngine(SimpleNamespace(api=client), ())


def refusal(status: int = 500, text: str = "no") -> APIError:
    response = requests.Response()
    response.status_code = status
    return APIError(text, response=response, explanation=text)


def ignore(_event):
    pass


def frame(stream: int, payload: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(payload).to_bytes(4, "big") + payload


def end_agent(client: FakeClient, status: int = 0, memory_kills: int = 0) -> None:
    """As the keeper does."""
    event = {"event": "agent_ended", "status": status, "memory_kills": memory_kills}
    client.daemon.sendall(frame(1, b"\n\x1e" + json.dumps(event).encode() + b"\n"))


@pytest.fixture
def request_of(make_spec):
    return creation_request(make_spec(image="i", run_id="r", gpus=("GPU-a",)), "host", 4096)


def test_containers_have_a_read_only_root(request_of):
    assert request_of["host_config"]["read_only"] is True


def test_containers_have_no_capability_and_get_none(request_of):
    assert request_of["host_config"]["cap_drop"] == ["ALL"]
    assert request_of["host_config"]["security_opt"] == ["no-new-privileges"]
    assert not {"privileged", "cap_add", "devices", "pid_mode", "ipc_mode", "userns_mode"} & set(
        request_of["host_config"]
    )


def test_containers_run_as_a_user_that_nobody_is(request_of):
    assert request_of["user"] == f"{USER}:{USER}"


def test_containers_have_an_init_process(request_of):
    assert request_of["host_config"]["init"] is True


def test_containers_have_limits_from_the_job(make_spec):
    spec = make_spec(image="i")
    config = creation_request(spec, "host", 4096)["host_config"]
    assert config["pids_limit"] == spec.resources.pids
    assert config["mem_limit"] == config["memswap_limit"] == spec.resources.memory_bytes
    assert config["shm_size"] == spec.resources.shm_bytes


def test_containers_have_no_network_and_know_their_own_name(request_of):
    assert request_of["host_config"]["network_mode"] == "none"
    assert request_of["hostname"] == "node0"
    assert request_of["host_config"]["extra_hosts"] == {"node0": "127.0.0.1"}


def test_containers_mount_a_volume_of_their_own_and_nothing_of_the_host(request_of):
    mounts = request_of["host_config"]["mounts"]
    assert [(mount["Target"], mount["Type"], mount["Source"]) for mount in mounts] == [
        ("/job", "volume", ""),
        ("/job/shared", "volume", ""),
    ]
    assert "binds" not in request_of["host_config"]
    assert "nosuid,nodev" in request_of["host_config"]["tmpfs"]["/tmp"]


def test_every_object_carries_the_labels_by_which_it_is_reaped(request_of):
    wanted = {"allranks": "1", "allranks.run": "r", "allranks.host": "host"}
    assert wanted.items() <= request_of["labels"].items()
    for mount in request_of["host_config"]["mounts"]:
        assert mount["VolumeOptions"]["Labels"] == request_of["labels"]


def test_volumes_have_room_for_what_is_copied_in_for_results_and_for_what_tests_may_write(make_spec):
    spec = make_spec(image="i")
    job, shared = creation_request(spec, "host", 4096)["host_config"]["mounts"]
    options = [mount["VolumeOptions"]["DriverConfig"]["Options"] for mount in (job, shared)]
    assert [each["type"] for each in options] == ["tmpfs", "tmpfs"]
    assert options[0]["o"].startswith(f"size={4096 + engine_docker.RESULTS_BYTES},")
    assert options[1]["o"].startswith(f"size={spec.resources.disk_bytes},")
    assert all("nosuid,nodev" in each["o"] for each in options)
    assert (f"uid={USER}" in options[0]["o"], f"uid={USER}" in options[1]["o"]) == (False, True)


def test_containers_get_exactly_the_leased_gpus_by_id(request_of):
    [gpus] = request_of["host_config"]["device_requests"]
    assert gpus["DeviceIDs"] == ["GPU-a"]
    assert gpus["Count"] == 0  # the daemon refuses a request that has both
    assert (gpus["Driver"], gpus["Capabilities"]) == ("nvidia", [["gpu"]])


def test_containers_without_a_lease_ask_for_no_device(make_spec):
    assert gpu_settings(make_spec(image="i")) == {"device_requests": []}


def test_cdi_devices_are_asked_for_by_their_names(make_spec):
    spec = make_spec(image="i", gpus=("GPU-a", "example.com/gpu=7"), passthrough=Passthrough(driver="cdi"))
    [request] = gpu_settings(spec)["device_requests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=GPU-a", "example.com/gpu=7"])


def test_gpus_of_amd_are_device_nodes_with_the_groups_that_may_use_them(make_spec):
    nodes = ("/dev/kfd", "/dev/dri/renderD129")
    passthrough = Passthrough(driver="rocm", nodes=nodes, groups=(44, 110))
    settings = gpu_settings(make_spec(image="i", gpus=("GPU-a",), passthrough=passthrough))
    assert settings == {"devices": [f"{node}:{node}:rw" for node in nodes], "group_add": ["44", "110"]}


def test_logs_are_not_kept_by_the_daemon(request_of):
    assert request_of["host_config"]["log_config"] == {"type": "none"}


def test_agents_are_started_with_the_folders_of_the_volume(request_of):
    assert request_of["entrypoint"] == ["python3"]
    assert request_of["command"] == keeper_arguments()
    arguments = " ".join(keeper_arguments())
    assert "-m allranks.harness.keeper --config /job/agent/config.json" in arguments
    assert "--results /job/results" in arguments


def test_variables_of_the_job_win_except_those_that_make_it_run(make_spec):
    asked = {"HOME": "/tmp", "PYTHONPATH": "/evil", "NCCL_DEBUG": "WARN"}
    made = container_environment(make_spec(run_id="r", environment=asked))
    assert (made["HOME"], made["NCCL_DEBUG"]) == ("/tmp", "WARN")
    assert made["PYTHONPATH"] == "/job/agent"


def test_container_names_are_legal_and_unlike_for_each_attempt(make_spec):
    assert container_name(make_spec(run_id="r")) == "allranks-r-gloo-w2-g0-env-tiny-1"
    assert container_name(make_spec(job_id="a b/c:d")).count("/") == 0
    assert container_name(make_spec(attempt=2)) != container_name(make_spec(attempt=1))


def test_archive_has_each_folder_of_the_job_and_its_config(make_spec):
    data = job_archive(make_spec(), ()).data
    assert all(name in data for name in (b"agent/config.json", b"code", b"results"))


def test_a_job_is_attached_before_it_starts_and_removed_with_its_volume(fake, spec):
    client = fake()
    with engine_of(client).start(spec) as job:
        client.daemon.shutdown(socket.SHUT_WR)
        assert job.wait(ignore).status == 0
    assert client.names == ["create", "attach", "start", "put_archive", "wait", "inspect", "remove"]
    assert client.calls[-1] == ("remove", ID, True, True)


def test_a_job_without_an_image_is_an_error(fake, make_spec):
    client = fake()
    with pytest.raises(EngineError, match="no image"), engine_of(client).start(make_spec()):
        pass
    assert client.calls == []


def test_a_container_that_cannot_be_created_leaves_nothing_to_remove(fake, spec):
    client = fake(create=refusal(404, "No such image: allranks/cpu:1"))
    with pytest.raises(EngineError, match="could not be started") as error, engine_of(client).start(spec):
        pass
    assert error.value.why == "No such image: allranks/cpu:1"
    assert client.names == ["create"]


@pytest.mark.parametrize("step", ["put_archive", "attach", "start"])
@pytest.mark.parametrize("failure", [refusal(), requests.ConnectionError("gone"), OSError("no")], ids=repr)
def test_a_container_that_cannot_be_started_is_removed_at_once(fake, spec, step, failure, monkeypatch):
    monkeypatch.setattr(engine_docker, "STOP_GRACE", 3600)
    client = fake(**{step: failure})
    with pytest.raises(EngineError, match="could not be started"), engine_of(client).start(spec):
        pass
    assert client.names[-2:] == [step, "remove"]


def test_a_container_that_cannot_be_removed_hides_no_other_error(fake, spec):
    client = fake(start=refusal(500, "no such runtime"), remove=requests.ConnectionError("gone"))
    with pytest.raises(EngineError) as error, engine_of(client).start(spec):
        pass
    assert error.value.why == "no such runtime"


@pytest.mark.parametrize("failure", [NotFound("gone"), refusal(409, "in progress"), OSError("no")], ids=repr)
def test_a_container_that_is_gone_already_is_no_error(fake, spec, failure):
    client = fake(remove=failure)
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        job.wait(ignore)


@pytest.mark.parametrize("step", ["wait", "inspect"])
def test_a_daemon_that_is_lost_while_a_job_runs_is_an_error(fake, spec, step):
    client = fake(**{step: requests.ConnectionError("connection refused")})
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        with pytest.raises(EngineError, match="lost a job"):
            job.wait(ignore)
    assert client.names[-1] == "remove"


def test_a_connection_that_breaks_while_a_job_runs_is_an_error_too(fake, spec, monkeypatch):
    client = fake(wait=requests.ConnectionError("gone"))
    with engine_of(client).start(spec) as job:
        monkeypatch.setattr(job, "_attached", Broken(client.ours))
        client.daemon.close()
        with pytest.raises(EngineError, match="lost a job"):
            job.wait(ignore)


class Broken:
    """A socket that is readable, and then refuses."""

    def __init__(self, real):
        self._real = real

    def fileno(self):
        return self._real.fileno()

    def recv(self, _size):
        raise ConnectionResetError

    def shutdown(self, _how):
        raise ConnectionResetError

    def close(self):
        self._real.close()


def test_going_after_the_container_has_ended_is_no_error(fake, spec):
    client = fake()
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        job.go()
        job.wait(ignore)


def test_a_container_out_of_memory_says_so(fake, spec):
    client = fake()
    client.state = {"ExitCode": 137, "OOMKilled": True, "Error": ""}
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        ending = job.wait(ignore)
    assert (ending.status, ending.out_of_memory, ending.timed_out) == (137, True, False)


def test_what_the_daemon_says_about_an_end_stands_in_for_missing_output(fake, spec):
    client = fake()
    client.state = {"ExitCode": 127, "OOMKilled": False, "Error": "exec: python3: not found"}
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        assert job.wait(ignore).output == "exec: python3: not found"


def test_events_and_other_output_are_told_apart(fake, spec):
    client, events = fake(), []
    with engine_of(client).start(spec) as job:
        line = b'\x1e{"event": "hello"}\n'
        client.daemon.sendall(b"\x01\0\0\0" + len(line).to_bytes(4, "big") + line + b"\x02\0\0\0\0\0\0\x04oops")
        client.daemon.shutdown(socket.SHUT_WR)
        ending = job.wait(events.append)
    assert (events, ending.output) == ([{"event": "hello"}], "oops")


def test_stopping_ends_the_agents_input_and_waits_for_its_end(fake, spec):
    client = fake()
    with engine_of(client).start(spec) as job:
        end_agent(client)
        job.stop()
        assert client.daemon.recv(10) == b"begin\n"
        assert client.daemon.recv(10) == b""
    assert "kill" not in client.names


def test_an_agent_that_does_not_stop_is_killed_once(fake, spec, monkeypatch):
    monkeypatch.setattr(engine_docker, "STOP_GRACE", 0.05)
    client = fake()
    with engine_of(client).start(spec) as job:
        job.stop()
        job.stop()
    assert client.names[-2:] == ["kill", "remove"]


def test_a_daemon_that_refuses_to_kill_leaves_it_to_removal(fake, spec, monkeypatch):
    monkeypatch.setattr(engine_docker, "STOP_GRACE", 0.05)
    client = fake(kill=refusal(409, "not running"))
    with engine_of(client).start(spec):
        pass
    assert client.names[-1] == "remove"


def test_the_time_limit_of_the_engine_ends_a_job(fake, make_spec, monkeypatch):
    monkeypatch.setattr(engine_docker, "STOP_GRACE", 0.05)
    client = fake()
    limits = Resources(memory_bytes=1, shm_bytes=1, disk_bytes=1, pids=1, seconds=0.05)
    with engine_of(client).start(make_spec(image="i", resources=limits)) as job:
        assert job.wait(ignore).timed_out
    assert "kill" in client.names


@pytest.mark.parametrize("failure", [NotFound("gone"), OSError("no")], ids=repr)
def test_results_that_cannot_be_had_are_an_error(fake, spec, failure, tmp_path):
    client = fake(get_archive=failure)
    with engine_of(client).start(spec) as job:
        end_agent(client)
        job.wait(ignore)
        with pytest.raises(EngineError, match="could not be copied"):
            job.collect(tmp_path)


def test_the_end_of_the_agent_is_told_by_its_keeper_and_its_files_are_still_there(fake, spec):
    client, events = fake(), []
    with engine_of(client).start(spec) as job:
        end_agent(client, status=-9, memory_kills=1)
        ending = job.wait(events.append)
    assert (ending.status, ending.out_of_memory, ending.timed_out) == (-9, True, False)
    assert events == []
    assert client.names[-1] == "remove"
    assert "wait" not in client.names


def test_a_container_that_ends_before_its_agent_takes_the_files_along_and_that_is_said(fake, spec, tmp_path):
    client = fake()
    client.state = {"ExitCode": 137, "OOMKilled": True, "Error": ""}
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        job.wait(ignore)
        with pytest.raises(EngineError, match="ended before its agent did") as error:
            job.collect(tmp_path)
    assert "exit status 137" in error.value.why
    assert "want of memory" in error.value.why
    assert "get_archive" not in client.names


def test_results_that_are_no_archive_are_an_error(fake, spec, tmp_path):
    client = fake()
    with engine_of(client).start(spec) as job:
        end_agent(client)
        job.wait(ignore)
        with pytest.raises(EngineError, match="could not be copied"):
            job.collect(tmp_path)


def left(run_id: str) -> dict:
    labels = {"allranks": "1", "allranks.run": run_id}
    return {"Id": f"id-{run_id}", "Names": [f"/allranks-{run_id}"], "Name": f"volume-{run_id}", "Labels": labels}


@pytest.mark.usefixtures("locks")
def test_reaping_removes_what_dead_owners_left_and_nothing_else(fake):
    client = fake()
    client.listed = client.volumes_listed = [left("dead"), left("alive")]
    with own_run("alive"):
        assert engine_of(client).reap() == ["container allranks-dead", "volume volume-dead"]
    assert ("remove", "id-dead", True, True) in client.calls
    assert ("remove_volume", "volume-dead") in client.calls
    assert not any("alive" in str(call) for call in client.calls if call[0].startswith("remove"))


@pytest.mark.usefixtures("locks")
def test_remains_are_named_and_stay(fake):
    client = fake()
    client.listed = client.volumes_listed = [left("dead"), left("alive")]
    with own_run("alive"):
        assert engine_of(client).remains() == ["container allranks-dead", "volume volume-dead"]
    assert not [call for call in client.calls if call[0].startswith("remove")]


@pytest.mark.usefixtures("locks")
def test_reaping_asks_for_objects_of_this_host_alone(fake):
    client = fake()
    engine_of(client).reap()
    [asked] = [filters for name, *_, filters in client.calls if name == "containers"]
    assert asked["label"] == ["allranks=1", f"allranks.host={engine_docker.host_id()}"]


@pytest.mark.usefixtures("locks")
def test_two_that_reap_at_once_do_not_disturb_each_other(fake):
    client = fake(remove=NotFound("gone"), remove_volume=NotFound("gone"))
    client.listed = client.volumes_listed = [left("dead")]
    assert engine_of(client).reap() == ["container allranks-dead"]


def test_reaping_without_a_daemon_is_an_error(fake):
    with pytest.raises(EngineError, match="could not be listed"):
        engine_of(fake(containers=requests.ConnectionError("gone"))).reap()


def test_a_socket_without_a_daemon_is_an_error_that_names_it_and_leaves_nothing_open(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    with pytest.raises(EngineError, match="No Docker daemon") as error:
        connect()
    assert "/nonexistent.sock" in error.value.why
    gc.collect()  # an open socket would be a warning now


def test_an_address_that_is_none_is_an_error(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "nonsense://")
    with pytest.raises(EngineError, match="No Docker daemon"):
        connect()


def test_no_daemon_is_an_error_that_names_the_way_out(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(EngineError, match="No Docker daemon") as error:
            connect()
    assert "--engine process" in error.value.remedy
