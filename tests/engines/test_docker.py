"""The docker engine with a fake daemon: its requests, and its clean-up after every failure."""

import errno
import gc
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from docker.errors import NotFound
from fake_daemon import ID, end_agent, engine_of, frame, ignore, refusal, say

from allranks import ownership
from allranks.engines import agents, docker_objects
from allranks.engines.agent_output import Damage
from allranks.engines.base import FileCopy, Resources
from allranks.engines.docker_requests import container_title, volume_names
from allranks.errors import EngineError, ExitCode
from allranks.images import docker_client
from allranks.images.docker_client import connect
from allranks.images.leftovers import LABEL, foreign_builders
from allranks.ownership import HOST_LABEL, LOCKS_LABEL, LOCKS_VARIABLE, RUN_LABEL, locks_id, own_run
from allranks.protocol.records import Notice

REMOVED = ["remove", "remove_volume", "remove_volume"]
"""The requests at the end of every job."""


@pytest.fixture
def spec(make_spec):
    return make_spec(image="allranks/cpu:1")


def test_a_job_is_attached_before_it_starts_and_removed_with_its_volume(fake, spec):
    client = fake()
    with engine_of(client).start(spec) as job:
        client.daemon.shutdown(socket.SHUT_WR)
        assert job.wait(ignore).status == 0
    assert client.names == ["create", "attach", "start", "put_archive", "wait", "inspect", *REMOVED]
    assert client.calls[-3] == ("remove", ID, True, True)
    assert [name for _, name in client.calls[-2:]] == list(reversed(volume_names(spec)))


def test_a_job_without_an_image_is_an_error(fake, make_spec):
    client = fake()
    with pytest.raises(EngineError, match="no image"), engine_of(client).start(make_spec()):
        pass
    assert client.calls == []


def test_a_file_that_cannot_be_read_is_an_error_of_that_job_that_names_it(fake, make_spec, tmp_path, monkeypatch):
    (tmp_path / "secret.txt").write_text("x")
    spec = make_spec(image="allranks/cpu:1", files=(FileCopy(source=tmp_path / "secret.txt", target=Path("suite")),))
    client = fake()

    def refuse(path, *arguments, **further):
        if path.name == "secret.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **further)

    opened = Path.open
    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(EngineError, match="cannot be read") as error, engine_of(client).start(spec):
        pass
    assert "secret.txt" in error.value.why
    assert client.names[-4:] == ["put_archive", *REMOVED]


def test_a_container_that_cannot_be_created_leaves_nothing_to_remove(fake, spec):
    client = fake(create=refusal(404, "No such image: allranks/cpu:1"))
    with pytest.raises(EngineError, match="could not be started") as error, engine_of(client).start(spec):
        pass
    assert error.value.why == "No such image: allranks/cpu:1"
    assert client.names == ["create", *REMOVED[1:]]


@pytest.mark.parametrize("step", ["put_archive", "attach", "start"])
@pytest.mark.parametrize("failure", [refusal(), requests.ConnectionError("gone"), OSError("no")], ids=repr)
def test_a_container_that_cannot_be_started_is_removed_at_once(fake, spec, step, failure, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 3600)
    client = fake(**{step: failure})
    with pytest.raises(EngineError, match="could not be started"), engine_of(client).start(spec):
        pass
    assert client.names[-4:] == [step, *REMOVED]


def test_a_container_that_cannot_be_removed_hides_no_other_error(fake, spec):
    client = fake(start=refusal(500, "no such runtime"), remove=requests.ConnectionError("gone"))
    with pytest.raises(EngineError) as error, engine_of(client).start(spec):
        pass
    assert error.value.why == "no such runtime"


@pytest.mark.parametrize("failure", [NotFound("gone"), refusal(409, "in progress"), OSError("no")], ids=repr)
def test_a_container_that_is_gone_already_is_no_error(fake, spec, failure, monkeypatch):
    monkeypatch.setattr(docker_objects, "_REMOVED_WITHIN", 0.2)
    client = fake(remove=failure)
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        job.wait(ignore)


@pytest.mark.parametrize("step", ["wait", "inspect"])
def test_a_daemon_that_is_lost_while_a_job_runs_is_an_error(fake, spec, step):
    client = fake(**{step: requests.ConnectionError("connection refused")})
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        with pytest.raises(EngineError, match="is lost"):
            job.wait(ignore)
    assert client.names[-3:] == REMOVED


def test_a_container_that_is_removed_while_its_job_runs_is_an_error(fake, spec):
    gone = NotFound("404", explanation="No such container: abc")
    client = fake(wait=gone, inspect=gone)
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        with pytest.raises(EngineError, match="was removed while the job ran") as raised:
            job.wait(ignore)
    assert "No such container" in raised.value.why


def test_a_lost_daemon_is_reported_as_a_sentence(fake, spec):
    gone = requests.ConnectionError(("Connection aborted.", FileNotFoundError(2, "No such file or directory")))
    gone.__context__ = FileNotFoundError(2, "No such file or directory")
    with pytest.raises(EngineError) as raised, engine_of(fake(create=gone)).start(spec):
        pass
    assert raised.value.why == "The daemon does not answer: No such file or directory."


def test_a_connection_that_breaks_while_a_job_runs_is_an_error_too(fake, spec, monkeypatch):
    client = fake(wait=requests.ConnectionError("gone"))
    with engine_of(client).start(spec) as job:
        monkeypatch.setattr(job._leader, "_attached", Broken(client.ours))
        client.daemon.close()
        with pytest.raises(EngineError, match="is lost"):
            job.wait(ignore)


class Broken:
    """A socket that is readable, but fails when it is read."""

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


def test_a_container_out_of_memory_is_reported(fake, spec):
    client = fake()
    client.states[ID] = {"ExitCode": 137, "OOMKilled": True}
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        ending = job.wait(ignore)
    assert (ending.status, ending.out_of_memory, ending.timed_out) == (137, True, False)


def test_the_error_of_the_daemon_replaces_missing_output(fake, spec):
    client = fake()
    client.states[ID] = {"ExitCode": 127, "Error": "exec: python3: not found"}
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        assert job.wait(ignore).output == "exec: python3: not found"


def test_records_and_other_output_are_separated(fake, spec):
    client, records = fake(), []
    with engine_of(client).start(spec) as job:
        say(client, Notice(text="hello"))
        client.daemon.sendall(frame(2, b"oops"))
        client.daemon.shutdown(socket.SHUT_WR)
        ending = job.wait(lambda *record: records.append(record))
    assert (records, ending.output) == ([(0, Notice(text="hello"))], "oops")


def test_a_container_with_damaged_output_still_ends_with_its_files(fake, spec):
    client, records = fake(), []
    with engine_of(client).start(spec) as job:
        client.daemon.sendall(frame(1, b"\x1enonsense\n"))
        end_agent(client, status=1)
        assert job.wait(lambda *record: records.append(record)).status == 1
    assert records == [(0, Damage("record 1, from byte 0 on, is not JSON"))]


def test_stopping_ends_the_agents_input_and_waits_for_its_end(fake, spec):
    client = fake()
    with engine_of(client).start(spec) as job:
        end_agent(client)
        job.stop()
        assert client.daemon.recv(10) == b"begin\n"
        assert client.daemon.recv(10) == b""
    assert "kill" not in client.names


def test_an_agent_that_does_not_stop_is_killed_once(fake, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake()
    with engine_of(client).start(spec) as job:
        job.stop()
        job.stop()
    assert client.names[-5:] == ["inspect", "kill", *REMOVED]
    assert client.names.count("kill") == 1


def test_the_connection_is_shut_before_a_container_is_killed(fake, spec, monkeypatch):
    """With unread output, a daemon does not answer a request to kill a container."""
    monkeypatch.setattr(agents, "STOP_GRACE", 0.0)
    client = fake()
    killed = []

    def kill(identifier):
        with pytest.raises(BrokenPipeError):
            client.daemon.send(b"more")
        killed.append(identifier)

    monkeypatch.setattr(client, "kill", kill)
    with engine_of(client).start(spec) as job:
        job.stop()
    assert killed == [ID]


def test_a_daemon_that_refuses_to_kill_leaves_it_to_removal(fake, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake(kill=refusal(409, "not running"))
    with engine_of(client).start(spec):
        pass
    assert client.names[-3:] == REMOVED


def test_the_time_limit_of_the_engine_ends_a_job(fake, make_spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
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


def test_the_container_init_reports_the_end_of_the_agent_and_keeps_its_files(fake, spec):
    client, records = fake(), []
    with engine_of(client).start(spec) as job:
        end_agent(client, status=-9, memory_kills=1)
        ending = job.wait(lambda *record: records.append(record))
        assert client.daemon.recv(100) == b"begin\n"
        client.daemon.setblocking(False)
        with pytest.raises(BlockingIOError):  # the end of its input would have the keeper leave
            client.daemon.recv(100)
    assert (ending.status, ending.out_of_memory, ending.timed_out) == (-9, True, False)
    assert records == []
    assert client.names[-3:] == REMOVED
    assert "wait" not in client.names


OUTSIDE = "Another program killed or stopped it (docker kill, docker stop), or its daemon ended."


@pytest.mark.parametrize(
    ("state", "what", "why"),
    [
        ({"ExitCode": 137, "OOMKilled": True}, "was killed by the kernel's out-of-memory killer", "limits.memory_mib"),
        ({"ExitCode": 137}, "was killed (SIGKILL)", OUTSIDE),
        ({"ExitCode": 143}, "was killed (SIGTERM)", OUTSIDE),
        ({"ExitCode": 255}, "was killed (signal 127)", OUTSIDE),
        ({"ExitCode": 3}, "ended unexpectedly", "Its exit status is 3."),
        ({"ExitCode": None}, "ended unexpectedly", "Its exit status is unknown."),
    ],
    ids=str,
)
def test_a_container_that_ends_before_its_agent_loses_the_files_which_is_an_error(fake, spec, state, what, why):
    client = fake()
    client.states[ID] = state
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        job.wait(ignore)
        with pytest.raises(EngineError) as error:
            job.collect(Path("nowhere"))
    assert error.value.what == f"{container_title(spec)} {what}, and its files are lost."
    assert why in error.value.why
    assert "get_archive" not in client.names


def test_results_that_are_no_archive_are_an_error(fake, spec, tmp_path):
    client = fake()
    with engine_of(client).start(spec) as job:
        end_agent(client)
        job.wait(ignore)
        with pytest.raises(EngineError, match="could not be copied"):
            job.collect(tmp_path)


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ({"Paused": True, "Running": True}, "was paused (docker pause) until its time limit, and its files are lost"),
        ({"Running": True}, "did not stop on request, and its files are lost"),
    ],
    ids=str,
)
def test_a_container_that_allranks_kills_is_an_error_with_the_reason(fake, make_spec, monkeypatch, state, what):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake()
    client.states[ID] = {**state, "ExitCode": 137}
    limits = Resources(memory_bytes=1, shm_bytes=1, disk_bytes=1, pids=1, seconds=0.05)
    with engine_of(client).start(make_spec(image="i", resources=limits)) as job:
        assert job.wait(ignore).timed_out
        with pytest.raises(EngineError) as error:
            job.collect(Path("nowhere"))
    assert error.value.what.endswith(f" {what}.")


@pytest.mark.parametrize("step", ["remove", "remove_volume"])
def test_an_object_that_another_process_is_removing_is_removed(fake, spec, step):
    """The daemon rejects a second removal, so the volumes must be removed afterwards."""
    client = fake()
    perform, refused = client._call, []

    def busy(name, *arguments):
        perform(name, *arguments)
        if name == step and len(refused) < 3:
            refused.append(name)
            raise refusal(409, "removal is already in progress")

    client._call = busy
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        job.wait(ignore)
    assert refused == [step] * 3
    assert client.names.count(step) == 3 + REMOVED.count(step)


def test_what_stays_in_use_is_left_to_a_later_reap(fake, spec, monkeypatch):
    monkeypatch.setattr(docker_objects, "_REMOVED_WITHIN", 0.2)
    client = fake(remove_volume=refusal(409, "volume is in use"))
    with engine_of(client).start(spec) as job:
        client.daemon.close()
        job.wait(ignore)
    assert client.names.count("remove_volume") > 2


def left(run_id: str, host: str | None = None, **more: object) -> dict:
    labels = {"allranks": "1", "allranks.run": run_id, "allranks.host": host or docker_objects.host_id()}
    return {"Id": f"id-{run_id}", "Names": [f"/allranks-{run_id}"], "Name": f"of-{run_id}", "Labels": labels, **more}


REMAINS = ["container allranks-dead", "volume of-dead", "network of-dead"]


@pytest.fixture
def left_over(fake):
    """A fake daemon with objects of a dead run and of a live one."""

    def make(**failures):
        client = fake(**failures)
        client.listed = client.volumes_listed = client.networks_listed = [left("dead"), left("alive")]
        return client

    return make


@pytest.mark.usefixtures("locks")
def test_reaping_removes_what_dead_owners_left_and_nothing_else(left_over):
    client = left_over()
    with own_run("alive"):
        assert engine_of(client).clean_up().dead == REMAINS
    removed = [call[:2] for call in client.calls if call[0].startswith("remove")]
    # Whatever a container is in, or holds, cannot be removed before it.
    assert removed == [("remove", "id-dead"), ("remove_volume", "of-dead"), ("remove_network", "id-dead")]


@pytest.mark.usefixtures("locks")
def test_remains_are_named_and_stay(left_over):
    client = left_over()
    with own_run("alive"):
        assert engine_of(client).clean_up(is_dry_run=True).dead == REMAINS
    assert not [call for call in client.calls if call[0].startswith("remove")]


@pytest.mark.usefixtures("locks")
def test_a_network_in_use_by_others_is_kept(left_over):
    client = left_over(remove_network=refusal(403, "has active endpoints"))
    with own_run("alive"):
        assert engine_of(client).clean_up().dead == REMAINS[:2]


@pytest.mark.usefixtures("locks")
def test_whoever_leases_a_gpu_removes_the_container_that_still_has_it_and_no_other(fake, make_spec):
    client = fake()
    has, has_not = (make_spec(image="i", gpus=gpus).labels for gpus in (("GPU-a", "GPU-b"), ("GPU-c",)))
    here, same_locks = {HOST_LABEL: docker_objects.host_id()}, {HOST_LABEL: "other", LOCKS_LABEL: locks_id()}
    client.listed = [
        {"Id": "id-a", "Labels": {**has, **here}},
        {"Id": "id-b", "Labels": {**has, **same_locks}},
        {"Id": "id-c", "Labels": {**has_not, **here}},
        {"Id": "id-d", "Labels": {**has, HOST_LABEL: "other", LOCKS_LABEL: "other"}},
    ]
    engine_of(client).evict(("GPU-b",))
    assert client.calls[0][2]["label"] == ["allranks=1", "allranks.gpus"]
    assert [call[1] for call in client.calls if call[0] == "remove"] == ["id-a", "id-b"]


def test_a_gpu_that_a_dead_runs_container_does_not_let_go_is_an_error(fake, make_spec, monkeypatch):
    monkeypatch.setattr(docker_objects, "_EVICTED_WITHIN", 0.2)
    client = fake(remove=refusal(500, "cannot kill container"))
    labels = {**make_spec(image="i", gpus=("a",)).labels, HOST_LABEL: docker_objects.host_id()}
    client.listed = [{"Id": "id", "Names": ["/allranks-dead"], "Labels": labels}]
    with pytest.raises(EngineError, match="allranks-dead of a dead run still has a GPU"):
        engine_of(client).evict(("a",))
    assert client.names.count("remove") > 1


@pytest.mark.usefixtures("locks")
@pytest.mark.parametrize(("place", "removed"), [(locks_id, ["container gone"]), (lambda: "elsewhere", [])])
def test_what_is_of_another_container_is_judged_only_by_locks_that_are_visible_here(left_over, place, removed):
    """A run in another container has another host id, but the same lock folder."""
    client = left_over()
    labels = {HOST_LABEL: "of.another.container", LOCKS_LABEL: place()}
    client.listed = [
        {"Id": f"id-{run}", "Names": [f"/{run}"], "ImageID": "i", "Labels": {**labels, RUN_LABEL: run}}
        for run in ("alive", "gone")
    ]
    client.volumes_listed = client.networks_listed = []
    with own_run("alive"):
        assert engine_of(client).clean_up().dead == removed


def test_objects_of_a_run_have_the_id_of_its_lock_folder(fake, make_spec):
    client = fake(start=refusal())
    with suppress(EngineError), engine_of(client).start(make_spec(image="i")):
        pass
    [request] = [call[2] for call in client.calls if call[0] == "create"]
    assert request["labels"][LOCKS_LABEL] == locks_id()


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """``runner(ALLRANKS_LOCKS, ...)``: simulate a process with or without access to the daemon and its locks."""

    def make(*, named="", is_mounted=False, is_daemon_local=False):
        monkeypatch.delenv(LOCKS_VARIABLE, raising=False)
        if named:
            monkeypatch.setenv(LOCKS_VARIABLE, str(tmp_path / named))
        monkeypatch.setattr(docker_client, "is_daemon_local", lambda: is_daemon_local)
        monkeypatch.setattr(Path, "is_mount", lambda _: is_mounted)

    return make


@pytest.mark.parametrize("place", [{"named": "shared"}, {"is_mounted": True}, {"is_daemon_local": True}], ids=str)
def test_gpus_are_leased_where_other_runs_see_the_leases(fake, runner, place):
    runner(**place)
    engine_of(fake()).check_leases()


def test_gpus_are_not_leased_if_the_locks_of_the_daemons_host_are_inaccessible(fake, runner):
    runner()
    client = fake()
    with pytest.raises(EngineError, match="cannot access the locks of the Docker daemon's host") as error:
        engine_of(client).check_leases()
    assert error.value.exit_code == ExitCode.INFRASTRUCTURE
    assert "Mount the host's /run/lock/allranks" in error.value.remedy
    assert f"set {LOCKS_VARIABLE} to a folder" in error.value.remedy
    assert client.calls == [], "no container is asked"


def test_a_daemon_elsewhere_is_not_seen(monkeypatch):
    for address in ("tcp://docker:2375", "ssh://user@host", "http://127.0.0.1:2375", "npipe:////./pipe/docker"):
        monkeypatch.setenv("DOCKER_HOST", address)
        assert not docker_client.is_daemon_local()


def test_a_daemon_of_this_process_namespace_is_seen(monkeypatch, tmp_path):
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "docker.sock"))
        daemon.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        assert docker_client.is_daemon_local()


def test_a_container_of_a_finished_image_is_of_no_unfinished_build():
    container = {"Labels": {LABEL: ""}, "State": "running"}
    client = SimpleNamespace(images=lambda **_: [], containers=lambda **_: [container])
    assert foreign_builders(client) == []


def test_a_job_without_gpus_is_not_looked_at_for_them(make_spec):
    assert "allranks.gpus" not in make_spec(image="i").labels


@pytest.fixture
def elsewhere(locks):  # noqa: ARG001 - they are of the host that is named here
    """The id of another boot of this machine, and the time of the current boot."""
    machine, _, spaces = ownership.host_id().split(".")
    return f"{machine}.{'0' * 16}.{spaces}", time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def test_what_cannot_be_judged_from_here_is_left_alone_and_named(fake, elsewhere):
    client = fake()
    rebooted, booted = elsewhere
    machine, boot, _ = ownership.host_id().split(".")
    hosts = {
        "other-host": "0123456789abcdef",
        "other-name-space": f"{machine}.{boot}.{'0' * 16}",
        "same-disk-image": rebooted,
    }
    made = int(booted) + 60
    client.listed = [left(run_id, host, Created=made, State="exited") for run_id, host in hosts.items()]
    client.listed.append(left("runs-on", rebooted, Created=1, State="running"))
    client.volumes_listed = [left("v", rebooted, CreatedAt=datetime.fromtimestamp(made, UTC).isoformat())]
    client.networks_listed = [left("n", rebooted, Created="0001-01-01T00:00:00 and no date")]
    engine = engine_of(client)
    assert engine.clean_up(is_dry_run=True).dead == engine.clean_up().dead == []
    assert not [call for call in client.calls if call[0].startswith("remove")]
    names = [f"container allranks-{run_id}" for run_id in (*hosts, "runs-on")]
    assert engine.clean_up(is_dry_run=True).unknown == [*names, "volume of-v", "network of-n"]


def test_what_is_left_of_an_earlier_boot_of_this_host_is_removed(fake, elsewhere):
    client = fake()
    rebooted, booted = elsewhere
    date = datetime.fromtimestamp(booted - 60, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    client.listed = [left("dead", rebooted, Created=int(booted) - 60, State="exited")]
    client.volumes_listed = [left("dead", rebooted, CreatedAt=f"{date}Z")]
    client.networks_listed = [left("dead", rebooted, Created=f"{date}.123456789Z")]
    assert engine_of(client).clean_up(is_dry_run=True).unknown == []
    assert engine_of(client).clean_up().dead == REMAINS


@pytest.mark.usefixtures("locks")
def test_what_has_our_label_and_is_no_runs_stays(fake):
    """Such as the container that probes the Python of a base image, which belongs to builds."""
    client = fake()
    client.listed = [{"Id": "id", "Labels": {"allranks": "1", "allranks.host": docker_objects.host_id()}}]
    engine = engine_of(client)
    assert engine.clean_up().dead == engine.clean_up(is_dry_run=True).unknown == []


@pytest.mark.usefixtures("locks")
def test_two_that_reap_at_once_do_not_disturb_each_other(fake):
    client = fake(remove=NotFound("gone"), remove_volume=NotFound("gone"))
    client.listed = client.volumes_listed = [left("dead")]
    assert engine_of(client).clean_up().dead == ["container allranks-dead"]


def test_reaping_without_a_daemon_is_an_error(fake):
    with pytest.raises(EngineError, match="could not be listed"):
        engine_of(fake(containers=requests.ConnectionError("gone"))).clean_up()


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
