"""The parts of a node's supervisor; tests/plugins/slurm/test_engine.py runs whole ones."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from allranks.plugins.slurm.agent import node_supervisor
from allranks.plugins.slurm.agent.node_supervisor import (
    NodeSupervisor,
    gpus_to_check,
    interface_towards,
    own_address,
)
from allranks.plugins.slurm.agent.record_forwarder import RecordForwarder
from allranks.protocol.config import NodeConfig, TimeLimit

OWN = "of one job"


def test_a_node_is_reached_at_the_address_that_slurm_used_if_it_is_its_own():
    for given in ("127.0.0.1", "203.0.113.1"):  # the second is nobody's (RFC 5737)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((own_address({"SLURM_LAUNCH_NODE_IPADDR": given}), 0))


def test_the_interface_of_the_loopback_address_is_lo():
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no.such.host.invalid") == ""


def test_gpus_are_told_by_their_ids_in_the_order_of_the_cluster(monkeypatch):
    answer = subprocess.CompletedProcess([], 0, stdout="0, GPU-a\n1, GPU-b\n2, GPU-c\n")
    monkeypatch.setattr(node_supervisor.subprocess, "run", lambda *_, **__: answer)
    found = gpus_to_check({"CUDA_VISIBLE_DEVICES": "2,0"})
    assert [(gpu.gpu, gpu.visible) for gpu in found] == [("GPU-c", "GPU-c"), ("GPU-a", "GPU-a")]
    assert gpus_to_check({}) == ()


def test_without_nvidias_tool_gpus_keep_their_numbers(monkeypatch):
    def lack(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(node_supervisor.subprocess, "run", lack)
    assert gpus_to_check({"CUDA_VISIBLE_DEVICES": "0"}) == ()


@pytest.fixture
def nodes(tmp_path):
    for node in (0, 1):
        (tmp_path / f"node-{node}").mkdir()
    return [NodeSupervisor(tmp_path, node, {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}) for node in (0, 1)]


def assembly(seconds):
    return TimeLimit(value=seconds, setting="limits.assembly")


def test_a_node_learns_where_the_first_one_listens(nodes):
    posts = [NodeConfig(node=node, leader="", port=0, token=OWN) for node in (0, 1)]
    first, held = nodes[0]._rendezvous(posts[0], assembly(5))
    second, nothing = nodes[1]._rendezvous(posts[1], assembly(5))
    assert nothing is None
    with held:
        assert (second.leader, second.port) == held.getsockname() == (first.leader, first.port)
    assert (first.token, second.token, second.node) == (OWN, OWN, 1)


def test_a_node_whose_first_one_never_comes_says_so(nodes):
    with pytest.raises(OSError, match=r"node 0 has not published its address within 0\.1 s \(limits\.assembly\)"):
        nodes[1]._rendezvous(NodeConfig(node=1, leader="", port=0, token=OWN), assembly(0.1))


@pytest.mark.parametrize(
    "end",
    [
        lambda _node, folder: (folder / "stop").touch(),
        lambda _node, folder: (folder / "stop").write_text("now"),
        lambda _node, folder: shutil.rmtree(folder / "node-1"),
        lambda _node, folder: shutil.rmtree(folder),
        lambda node, _folder: node._note(signal.SIGTERM, None),
    ],
)
def test_a_node_whose_job_is_over_waits_for_the_first_one_no_longer(nodes, tmp_path, end):
    end(nodes[1], tmp_path)
    began = time.monotonic()
    with pytest.raises(OSError, match="node 0 has not published its address"):
        nodes[1]._rendezvous(NodeConfig(node=1, leader="", port=0, token=OWN), assembly(5.0))
    assert time.monotonic() < began + 3.0


@pytest.mark.usefixtures("nodes")
def test_an_agent_that_cannot_be_started_leaves_an_end_that_says_why(tmp_path):
    command = [sys.executable, "-I", "-S", node_supervisor.__file__, str(tmp_path)]
    assert subprocess.run(command, env={**os.environ, "SLURM_NODEID": "0"}, check=False).returncode == 1
    ended = json.loads((tmp_path / "node-0" / "exit.json").read_text())
    assert ended["status"] is None
    assert "order.json" in ended["output"]
    assert (tmp_path / "node-0" / "placed.json").exists()


@pytest.mark.usefixtures("nodes")
def test_processes_that_an_earlier_job_lost_for_want_of_memory_are_not_this_jobs(tmp_path):
    patch = "counts = iter([7, 9]); linux.killed_for_memory = lambda: next(counts)"
    imports = "from allranks.agent import linux; from allranks.plugins.slurm.agent import node_supervisor"
    run = f"{imports}; {patch}; node_supervisor.main([{str(tmp_path)!r}, '0'])"
    subprocess.run([sys.executable, "-c", run], check=False)
    assert json.loads((tmp_path / "node-0" / "exit.json").read_text())["memory_kills"] == 2


def test_a_go_after_the_hang_up_does_no_harm(nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(node_supervisor, "end_orphans", lambda: None)  # the other children of this process stay
    (tmp_path / "stop").touch()
    code = (
        f"import sys, time; sys.stdin.read(); open({str(tmp_path / 'go')!r}, 'w').close(); time.sleep(1); sys.exit(7)"
    )
    source, target = os.pipe()
    os.close(target)
    records = RecordForwarder(source, tmp_path / "stream")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True) as agent:
        assert nodes[0]._watch(agent, records).status == 7
