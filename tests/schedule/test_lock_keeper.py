"""The keeper of locks over pipes, and in containers that share a daemon with the host."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from docker.errors import NotFound

from allranks.engine import host_locks, ownership
from allranks.engine.docker import DockerEngine
from allranks.engine.host_locks import HostLocks, sees_daemon
from allranks.engine.ownership import is_dead, locks_place, own_run
from allranks.engine.package import package_folder
from allranks.errors import EngineError
from allranks.image.base import DEFAULT, find_base
from allranks.schedule.daemon_leases import DaemonLeases
from allranks.schedule.gpu_leases import Holder, claimed, count_free, holders, try_lease
from allranks.schedule.gpu_pool import GpuPool
from allranks.schedule.sick_gpus import quarantined

GPUS = ("GPU-a", "GPU-b")
FRAME = b"\x01\0\0\0"


class PipedKeeper:
    """Stands in for a daemon: its container is a process of this host, and its bind mount a folder."""

    def __init__(self, mounted):
        self.mounted = mounted
        self.processes = []
        self.made = []

    def create_host_config(self, **options):
        return options

    def create_container(self, image, **request):
        self.made.append((image, request))
        return {"Id": "keeper"}

    def attach_socket(self, _identifier, params):
        assert params["stdin"]
        ours, self.theirs = socket.socketpair()
        return ours

    def start(self, _identifier):
        *_, (_, request) = self.made
        folder = self.mounted.get(request["host_config"]["mounts"][0]["Source"], "/nowhere")
        flags, program, _ = request["command"]
        process = subprocess.Popen(
            [sys.executable, flags, program, str(folder)],
            stdin=self.theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        threading.Thread(target=self._pass_on, args=(process, self.theirs), daemon=True).start()

    @staticmethod
    def _pass_on(process, theirs):
        with theirs, process.stdout:
            for line in process.stdout:
                theirs.sendall(FRAME + len(line).to_bytes(4, "big") + line)
            process.wait()

    def remove_container(self, _identifier, force):
        assert force


@contextmanager
def keeper_in(mounted, run_id="r1"):
    client = PipedKeeper(mounted)
    locks = HostLocks(client)
    try:
        locks.reach("image", run_id)
        yield locks
    finally:
        locks.close()
        for process in client.processes:
            process.wait()


@pytest.fixture
def base(tmp_path):
    """The host's /run/lock."""
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock").chmod(0o1777)
    return tmp_path / "lock"


@pytest.fixture
def host(base, monkeypatch):
    """This process is on the host itself."""
    folder = ownership.lock_folder_in(base)
    monkeypatch.setattr(ownership, "lock_folder", lambda: folder)
    for module in ("gpu_leases", "sick_gpus"):
        monkeypatch.setattr(f"allranks.schedule.{module}.lock_folder", lambda: folder)


@pytest.fixture
def leases(base, host):  # noqa: ARG001 - it changes this process
    with keeper_in({"/run/lock": base}) as locks:
        yield DaemonLeases(locks)


def test_a_lease_of_a_container_excludes_the_host_and_names_its_holder(leases):
    mine = Holder(run_id="r1", job_id="job", pid=1, since=2.0)
    with leases.try_lease(GPUS, 1, mine) as lease:
        assert lease.gpus == ("GPU-a",)
        assert holders(GPUS) == {"GPU-a": mine, "GPU-b": None}
        assert (try_lease(GPUS, 2), count_free(GPUS)) == (None, 1)
    assert count_free(GPUS) == 2


def test_a_lease_of_the_host_excludes_a_container(leases):
    with try_lease(GPUS, 1):
        assert (leases.try_lease(GPUS, 2), leases.count_free(GPUS)) == (None, 1)
        with leases.try_lease(GPUS, 1) as lease:
            assert lease.gpus == ("GPU-b",)


def test_two_containers_exclude_each_other_until_one_is_gone(leases, base):
    with keeper_in({"/run/lock": base}, "r2") as other:
        assert leases.try_lease(GPUS, 2) is not None
        assert DaemonLeases(other).try_lease(GPUS, 1) is None
        leases.locks.close()
        while (lease := DaemonLeases(other).try_lease(GPUS, 2)) is None:
            pass
        assert lease.gpus == GPUS


def test_a_run_in_a_container_is_alive_on_the_host_until_its_connection_ends(leases):
    assert leases.locks.place == locks_place()
    assert not is_dead("r1")
    with own_run("of-the-host"):
        assert leases.locks.dead(["of-the-host", "r1", "gone"]) == {"gone"}
    leases.locks.close()
    while not is_dead("r1"):
        pass


def test_a_container_stands_in_the_hosts_line(leases):
    pool = GpuPool(GPUS, "r1", leases)
    with try_lease(GPUS, 1):
        pool.wait_in_queue("large")
        assert claimed() == {*GPUS}
        assert GpuPool(GPUS, "r2").count_free() == 0
        assert pool.count_free() == 1
    with pool.lease(2, "large"):
        assert claimed() == set()


def test_a_container_reports_a_sick_gpu_to_the_host(leases):
    for run in ("r1", "r2"):
        leases.locks.ask("report_gpus", run, {"GPU-a": "wrong sums"}, ["GPU-b"])
    assert leases.locks.ask("quarantined", GPUS) == quarantined(GPUS)
    assert set(quarantined(GPUS)) == {"GPU-a"}


def test_a_keeper_that_was_ended_is_an_error_of_the_next_lease_and_is_not_replaced(leases):
    lease, entry = leases.try_lease(GPUS, 1), leases.stand_in_line(GPUS)
    [process] = leases.locks._client.processes
    process.kill()
    process.wait()
    with lease:
        entry.leave()
    for _ in range(2):
        leases.locks.reach("image", "r1")
        with pytest.raises(EngineError, match="locks of the daemon's host cannot be held"):
            leases.try_lease(GPUS, 1)
    assert len(leases.locks._client.made) == 1


def test_requests_of_several_threads_get_their_own_answers(leases):
    def ask(number):
        for _ in range(50):
            assert leases.locks.ask("dead", [f"run-{number}"]) == [f"run-{number}"]

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(ask, number) for number in range(4)]:
            done.result()


def test_without_an_image_all_gpus_may_be_free_and_none_can_be_had():
    leases = DaemonLeases(HostLocks(PipedKeeper({})))
    assert (leases.count_free(GPUS), leases.try_lease(GPUS, 0).gpus) == (2, ())
    with pytest.raises(EngineError, match="locks of the daemon's host cannot be held"):
        leases.try_lease(GPUS, 1)


@pytest.mark.usefixtures("host")
def test_a_host_whose_run_lock_is_roots_alone_has_its_locks_in_tmp(base, tmp_path):
    (tmp_path / "roots").mkdir(mode=0o755)
    with keeper_in({"/run/lock": tmp_path / "roots", "/tmp": base}) as locks:
        assert locks.place == locks_place()


def test_a_daemon_that_mounts_nothing_is_an_error_that_is_not_tried_again():
    client = PipedKeeper({})
    locks = HostLocks(client)
    for _ in range(2):
        with pytest.raises(EngineError, match="cannot be held") as caught:
            locks.reach("image", "r1")
    assert "-v /run/lock/allranks" in caught.value.remedy
    assert len(client.made) == 2, "one for each folder"


def test_a_keeper_may_do_nothing_but_hold_locks(base):
    with keeper_in({"/run/lock": base}) as locks:
        [(_, request)] = locks._client.made
    config = request["host_config"]
    assert (config["network_mode"], config["read_only"], config["cap_drop"]) == ("none", True, ["ALL"])
    assert [mount["Source"] for mount in config["mounts"]] == ["/run/lock"]
    assert request["user"] != "0:0"


IN_A_CONTAINER = """
import sys
from allranks.engine.docker import connect
from allranks.engine_kinds.containers import _docker_engine
from allranks.schedule.daemon_leases import DaemonLeases

client = connect()
engine = _docker_engine(client)
locks = engine.host_locks
print("elsewhere" if locks else "here", flush=True)
if sys.argv[1] == "hold":
    locks.reach(sys.argv[2], sys.argv[3])
    print(bool(DaemonLeases(locks).try_lease(["GPU-of-test"], 1)), flush=True)
    labels = {"allranks": "1", "allranks.run": sys.argv[3], **engine._owner}
    client.api.create_container(sys.argv[2], "true", labels=labels, name=f"left-{sys.argv[3]}")
    print("made", flush=True)
    sys.stdin.read()
else:
    print(sorted(name for name in engine.reap() if sys.argv[3] in name), flush=True)
"""


@pytest.fixture(scope="module")
def runner_image(docker_client):
    """An image with Python, and a Docker socket to share."""
    if os.environ.get("DOCKER_HOST") or not sees_daemon():
        pytest.skip("the daemon is on another host")
    return find_base(docker_client, DEFAULT, environ=os.environ, progress=print).reference


@contextmanager
def runner(image, does, name):
    """A runner in a container, which shares the host's socket and this Python's packages, and nothing else."""
    packages = Path(host_locks.docker.__file__).parents[1]
    command = [
        *(shutil.which("docker"), "run", "--rm", "-i", "--user=0", "--network=none", "--entrypoint=python3"),
        *("-v", "/var/run/docker.sock:/var/run/docker.sock", "-v", f"{package_folder().parent}:/src:ro"),
        *("-v", f"{packages}:/packages:ro", "-e", "PYTHONPATH=/src:/packages", "--name", f"{does}-{name}"),
        *(image, "-c", IN_A_CONTAINER, does, image, name),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


def remove(client, name):
    with suppress(NotFound):
        client.api.remove_container(name, force=True)


@pytest.mark.alone  # a run that starts beside it may be the one that removes what is left
@pytest.mark.docker
def test_runners_in_containers_share_leases_and_remove_what_a_killed_one_has_left(docker_client, runner_image, run_id):
    names = [f"{run_id}-{number}" for number in (1, 2)]
    with ExitStack() as stack:
        for name in names:
            stack.callback(remove, docker_client, f"left-{name}")
        stack.callback((ownership.lock_folder() / "gpu-GPU-of-test").unlink, missing_ok=True)
        runners = [stack.enter_context(runner(runner_image, "hold", name)) for name in names]
        said = [[process.stdout.readline().strip() for _ in range(3)] for process in runners]
        assert sorted(said) == [["elsewhere", "False", "made"], ["elsewhere", "True", "made"]]
        engine = DockerEngine(docker_client, ())
        assert not [name for name in engine.remains() if run_id in name], "both are alive"
        assert try_lease(["GPU-of-test"], 1) is None
        holder = next(name for name, (_, has_lease, _) in zip(names, said, strict=True) if has_lease == "True")
        docker_client.api.kill(f"hold-{holder}")
        while (lease := try_lease(["GPU-of-test"], 1)) is None:
            pass
        with lease, runner(runner_image, "reap", run_id) as third:
            gone = f"container left-{holder}"
            assert [name for name in engine.remains() if run_id in name] == [gone]
            assert third.stdout.readline() == "elsewhere\n"
            assert third.stdout.readline() == f"['{gone}']\n"
