"""A node's agent in a Docker container, with a client that only notes what it is asked for."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from allranks.agent import linux
from allranks.plugins.slurm.agent import node_docker, node_supervisor
from allranks.plugins.slurm.agent.node_container import INSIDE, AgentFolders, AgentLaunch, agent_command
from allranks.plugins.slurm.agent.node_docker import NodeContainer, agent_status, pid_namespace, remove, remove_orphans
from allranks.plugins.slurm.agent.node_supervisor import NodeSupervisor

OUTSIDE = AgentFolders(job=Path("/spool/job"), code=Path("/home/me/code"), package=Path("/spool/package"))
SCRATCH = Path("/node/allranks-node-x")
AGENT = agent_command("python3", INSIDE, 1)
VARIABLES = {"A": "secret", "PATH": "/node/bin", "TMPDIR": "/node", "PYTHONPATH": "/x", "CUDA_VISIBLE_DEVICES": ""}
EVERY_CPU = ",".join(map(str, sorted(os.sched_getaffinity(0))))
OWN = f"{os.getpid()}.{linux.began(os.getpid())}"


def launch(options=(), **variables):
    container = NodeContainer(
        name="allranks-job-node1", image="torch:2", options=options, variables={**VARIABLES, **variables}
    )
    return container.launch(AGENT, OUTSIDE, SCRATCH)


def test_an_agent_runs_as_its_user_on_the_nodes_network_with_no_rights_and_its_folders(monkeypatch):
    monkeypatch.setattr(os, "getgroups", lambda: [os.getgid(), 4242])
    launched = launch(("--memory=1",))
    assert launched.command == (
        *("docker", "run", "--rm", "--interactive", "--init", "--name=allranks-job-node1"),
        *(f"--label=allranks.host={pid_namespace()}", f"--label=allranks.supervisor={OWN}"),
        *("--log-driver=none", "--network=host", "--cgroupns=private", "--read-only", "--ulimit=core=0"),
        *("--cap-drop=ALL", "--security-opt=no-new-privileges"),
        *(f"--user={os.getuid()}:{os.getgid()}", "--group-add=4242", f"--cpuset-cpus={EVERY_CPU}"),
        "--mount=type=bind,source=/node/allranks-node-x,target=/tmp",
        "--mount=type=bind,source=/spool/job,target=/tmp/allranks/job",
        "--mount=type=bind,source=/home/me/code,target=/tmp/allranks/code,readonly",
        "--mount=type=bind,source=/spool/package,target=/tmp/allranks/package,readonly",
        "--workdir=/tmp/allranks/job/shared",
        *("--env=A", "--env=CUDA_VISIBLE_DEVICES", "--env=PYTHONPATH=/tmp/allranks/package", "--env=HOME=/tmp"),
        *("--memory=1", "--entrypoint=python3", "torch:2", *AGENT[1:]),
    )
    assert launched.container == "allranks-job-node1"
    assert launched.variables == {"USER": "user", **VARIABLES}, "the client finds its daemon by them"


def test_gpus_are_asked_for_by_their_ids_in_the_quotes_that_keep_the_comma():
    assert '--gpus="device=GPU-1,GPU-2"' in launch(CUDA_VISIBLE_DEVICES="GPU-1,GPU-2").command
    assert not [word for word in launch().command if "gpus" in word]


@pytest.mark.parametrize(("given", "limit"), [("1", "--cpu-quota=100000"), ("3", ""), ("", ""), ("0", ""), ("x", "")])
def test_a_node_that_binds_no_processors_limits_their_time(monkeypatch, given, limit):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 0, 1})
    command = launch(SLURM_CPUS_ON_NODE=given).command
    assert "--cpuset-cpus=0,1,2" in command
    assert [word for word in command if word.startswith("--cpu-quota")] == [limit] * bool(limit)


@pytest.mark.parametrize(
    ("client", "agent"), [(0, 0), (1, 1), (130, 130), (137, -9), (139, -11), (125, None), (-9, None), (None, None)]
)
def test_the_status_of_the_client_tells_the_agents(client, agent):
    assert agent_status(client) == agent


@pytest.fixture
def client(tmp_path):
    """A client that notes its arguments, and prints what the file `listed` has."""
    (tmp_path / "docker").write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n[ $1 != ps ] || cat {tmp_path}/listed\n[ $1 != run ] || exec cat\n'
    )
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "listed").touch()
    (tmp_path / "asked").touch()
    return Client(tmp_path)


class Client:
    def __init__(self, folder):
        self.listed = folder / "listed"
        self.variables = {"PATH": f"{folder}:{os.environ['PATH']}"}
        self._asked = folder / "asked"

    @property
    def asked(self):
        return self._asked.read_text().splitlines()


def ended_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_only_containers_whose_supervisor_is_certainly_dead_are_swept(client):
    began = linux.began(os.getpid())
    lines = {
        "alive": OWN,
        "another-process-now": f"{os.getpid()}.{began + 1}",
        "dead": f"{ended_process()}.{began}",
        "of-somebody": "x.y",
        "older": "",
        "unknown": f"{os.getpid()}",
    }
    client.listed.write_text("".join(f"{name} {supervisor}\n" for name, supervisor in lines.items()))
    remove_orphans(client.variables)
    listing, *removals = client.asked
    assert f"--filter label=allranks.host={pid_namespace()} --filter label=allranks.supervisor" in listing
    assert removals == ["rm --force --volumes another-process-now", "rm --force --volumes dead"]


def test_a_process_that_may_not_be_looked_at_counts_as_alive(client, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(linux, "began", lambda _: 0)
    client.listed.write_text("hidden 17.1\n")
    remove_orphans(client.variables)
    assert not client.asked[1:]


def test_a_daemon_that_does_not_answer_is_told_before_anything_starts(client, tmp_path):
    (tmp_path / "docker").write_text("#!/bin/sh\necho no daemon >&2; exit 1\n")
    with pytest.raises(OSError, match="docker ps: no daemon"):
        remove_orphans(client.variables)
    remove("x", client.variables)  # says nothing: there may be no such container
    with pytest.raises(OSError, match="docker"):
        remove_orphans({"PATH": "/nowhere"})


def test_a_client_that_never_returns_is_given_up(client, tmp_path, monkeypatch):
    monkeypatch.setattr(node_docker, "_ANSWER_WITHIN", 0.1)
    (tmp_path / "docker").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(OSError, match=r"docker ps: no answer in 0\.1 s"):
        remove_orphans(client.variables)


@pytest.fixture
def run(client, tmp_path, monkeypatch):
    """Runs an agent under a supervisor in this process, whose other children are not its own."""
    monkeypatch.setattr(node_supervisor, "end_orphans", lambda: None)
    for name in ("node-0", "shared"):
        (tmp_path / name).mkdir()
    supervisor = NodeSupervisor(tmp_path, 0, {})

    def run(script, *signals):
        for number in signals:
            supervisor._note(number, None)
        with (tmp_path / "lock").open("w") as lock:
            return supervisor._run_agent(contained(client, script), lock.fileno())

    return run


def contained(client, script):
    command = ("sh", "-c", script)
    return AgentLaunch(command=command, variables=client.variables, container="allranks-job-node0")


def test_a_container_is_removed_by_its_name_after_the_end_of_its_client(client, run, tmp_path, capfd):
    ended = run("echo a record; echo words >&2; exit 137")
    assert ended.status == -signal.SIGKILL
    assert [line.split()[0] for line in client.asked] == ["ps", "rm"]
    assert client.asked[1].endswith(" allranks-job-node0")
    assert (tmp_path / "node-0" / "stream").read_text() == "a record\n"
    assert capfd.readouterr().err == "words\n", "apart from the records, which pieces of them would tear"


def test_a_container_whose_client_was_killed_is_removed_and_its_end_is_unknown(client, run):
    ended = run("kill -KILL $$")
    assert ended.status is None
    assert client.asked[1:] == ["rm --force --volumes allranks-job-node0"]


def test_a_supervisor_that_is_told_to_end_ends_the_input_and_removes_the_container(client, run):
    timer = threading.Timer(30, os.kill, (os.getpid(), signal.SIGALRM))  # ends a test that hangs
    timer.start()
    try:
        ended = run("docker run; exit 130", signal.SIGTERM)
    finally:
        timer.cancel()
    assert ended.status == 130
    assert client.asked[-1] == "rm --force --volumes allranks-job-node0"


def test_each_process_has_its_own_beginning():
    assert linux.began(os.getpid()) >= linux.began(os.getppid()) > 0
    assert linux.began(ended_process()) == 0
