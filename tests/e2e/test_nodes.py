"""Jobs on two nodes in real containers: they find each other by every init method, and nobody else."""

import json
import socket
from contextlib import closing

import pytest

pytestmark = pytest.mark.docker

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [4]
nodes = [2]
init_method = ["env", "tcp", "file"]

[suites.wide]
path = "suite"
isolation = "job"

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]

[limits]
process_group = 30
test = 60
job = 120

[[env]]
when = "world_size > 0"
set = {{ OUTSIDE = '{outside}' }}
"""

SUITE = '''
import os
import selectors
import socket
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist


def test_each_node_has_its_ranks_and_knows_the_others_by_name(rank):
    node = rank // 2
    assert socket.gethostname() == f"node{node}"
    assert (os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]) == (str(node), str(rank % 2))
    addresses = {socket.gethostbyname(f"node{number}") for number in range(2)}
    assert len(addresses) == 2
    assert socket.gethostbyname(socket.gethostname()) in addresses


def test_ranks_of_all_nodes_reduce_together(rank, world_size):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == sum(range(world_size))


def test_all_nodes_share_a_folder(rank, shared_dir):
    (shared_dir / str(rank)).write_text("here")
    dist.barrier()
    assert {path.name for path in shared_dir.iterdir()} == {"0", "1", "2", "3"}


once = pytest.mark.skipif(os.environ["INIT_METHOD"] != "env", reason="the network is the same for every init method")


def reached(addresses, seconds):
    """Those of these addresses that take a connection."""
    found = []
    with selectors.DefaultSelector() as selector:
        for address in addresses:
            client = socket.socket()
            client.setblocking(False)
            if client.connect_ex(address) in (0, 115):  # EINPROGRESS
                selector.register(client, selectors.EVENT_WRITE, address)
        deadline = time.monotonic() + seconds
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.append(key.data)
                key.fileobj.close()
        for key in [*selector.get_map().values()]:
            key.fileobj.close()
    return found


def gateways():
    """Where the kernel would send what is for nobody here."""
    lines = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    return [socket.inet_ntoa(bytes.fromhex(line[2])[::-1]) for line in lines if line[2] != "00000000"]


@once
def test_nodes_reach_each_other_and_neither_the_host_nor_the_internet(rank):
    with socket.create_server(("", 0)) as server:
        ports = [None] * 4
        dist.all_gather_object(ports, server.getsockname()[1])
        peers = [(socket.gethostbyname(f"node{peer // 2}"), ports[peer]) for peer in range(4)]
        assert sorted(reached(peers, 10)) == sorted(peers)
        dist.barrier()
    *hosts, port = os.environ["OUTSIDE"].split()
    outside = [(host, int(port)) for host in (*hosts, *gateways())]
    assert reached([*outside, ("1.1.1.1", 53), ("8.8.8.8", 53)], 1) == []


@once
def test_nobody_knows_a_name_outside(rank):
    with pytest.raises(OSError):
        socket.gethostbyname("example.com")
'''


@pytest.fixture
def outside():
    """The addresses of this host, and a port at which somebody listens at all of them."""
    with closing(socket.create_server(("", 0), backlog=64)) as server, socket.socket(type=socket.SOCK_DGRAM) as asker:
        asker.connect(("192.0.2.1", 9))  # sends nothing
        yield f"{asker.getsockname()[0]} 172.17.0.1 {server.getsockname()[1]}"


def test_two_nodes_find_each_other_by_every_init_method_and_nobody_else(launch, scratch, outside):
    repository = scratch(SUITE)
    (repository / "matrix.toml").write_text(MATRIX.format(outside=outside))
    done = launch(repository, "--engine", "docker")
    assert done.code == 0, done.output
    records = [json.loads(path.read_text()) for path in done.folder.glob("cells/*/*/attempt-1/job.json")]
    assert {record["cell"] for record in records} == {f"gloo-w4-g0-{method}-n2" for method in ("env", "tcp", "file")}
    assert all(record["nodes"] == 2 and record["engine"] == "docker" for record in records)
    assert '"token"' not in json.dumps(records)
    for folder in done.folder.glob("cells/*/*/attempt-1"):
        names = {path.name for path in folder.iterdir()}
        assert {"agent.log", "agent-1.log", "rank-0.xml", "rank-3.xml", "journal.jsonl"} <= names
