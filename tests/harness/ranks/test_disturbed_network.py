"""A rank that has the network of its node disturbed, beside a helper that only remembers."""

import json
import socket
import threading
from contextlib import suppress

import pytest

from allranks.harness.config import AgentConfig, NodeConfig, TimeLimits
from allranks.harness.ranks import disturbed_network
from allranks.harness.ranks.disturbed_network import DisturbedNetwork


@pytest.fixture
def run(monkeypatch):
    """Run a test as local rank 0 of node 1 does, or as these variables say."""
    limits = TimeLimits(process_group=1, test=1, job=1, peer_grace=1)
    job = {"cell": "c", "suite": "s", "paths": (), "backend": "gloo", "world_size": 2, "gpu_count": 0, "seed": 0}
    post = NodeConfig(node=1, leader="node0", port=1, token="")
    config = AgentConfig(**job, init_method="env", isolation="job", limits=limits, nodes=2, post=post)

    plugins = []

    def run(network, **environment):
        for name, value in {"LOCAL_RANK": "0", "ALLRANKS_SEED": "7", **environment}.items():
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
        plugins.append(DisturbedNetwork(config, network))
        steps = plugins[-1].pytest_runtest_protocol()
        next(steps)
        with pytest.raises(StopIteration):
            steps.send(None)

    yield run
    for each in plugins:
        if each._connection is not None:
            each._connection.close()


@pytest.fixture
def helper(monkeypatch):
    """What a helper was asked for; it has seen a packet."""
    asked = []

    def serve(server):
        with suppress(OSError):  # nobody has come
            talk(server.accept()[0])

    def talk(connection):
        with connection:
            while data := connection.recv(1000):
                counts: dict[str, list[int]] = {"0": [5, 3]} if asked else {}
                asked.append(json.loads(data))  # before the answer, after which the test looks
                connection.sendall(json.dumps(counts).encode())

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(disturbed_network, "ADDRESS", server.getsockname())
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield asked


def test_the_first_rank_of_a_node_disturbs_it_for_the_time_of_the_test_and_says_so(run, helper, capsys):
    run("0-1:loss:2%")
    terms, end = helper
    assert {**terms["0"], "seed": ""} == {"kind": "loss", "value": 0.02, "first": 1, "most": 30.0, "seed": ""}
    assert end == {}
    assert capsys.readouterr().err.splitlines() == [
        "--network: a loss of 2 % between nodes 0 and 1",
        "--network: 3 of 5 packets from node 0 were disturbed",
    ]


def test_other_ranks_leave_that_to_the_first(run, helper):
    run("heavy", LOCAL_RANK="1")
    assert helper == []


def test_a_test_whose_network_cannot_be_disturbed_is_an_error(run, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(disturbed_network, "ADDRESS", server.getsockname())
    with pytest.raises(RuntimeError, match=r"the helper that disturbs the network of node 1 is gone: .*refused"):
        run("light")


def test_a_test_that_starts_its_own_ranks_is_an_error(run):
    with pytest.raises(RuntimeError, match="this test starts its ranks on one"):
        run("light", LOCAL_RANK="")
