"""Connections between two nodes in real containers, disturbed from outside of them."""

import pytest

pytestmark = pytest.mark.docker

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]
nodes = [2]

[suites.wide]
path = "suite"
isolation = "job"

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]

[limits]
process_group = 2
test = 20
job = 60
peer_grace = 1
"""

SUITE = """
import torch
import torch.distributed as dist


def test_reduces(rank):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == 1
"""


@pytest.mark.thorough
def test_a_partition_between_nodes_fails_a_test_and_the_report_says_so(launch, scratch):
    """That nothing of the helpers is left is what the fixture of every run asserts."""
    repository = scratch(SUITE)
    (repository / "matrix.toml").write_text(MATRIX)
    cut = ("--network", "0-1:cut", "--count", "1")
    done = launch(repository, "--engine", "docker", *cut, command="stress")
    if "No such file or directory (NFQUEUE)" in done.output:
        pytest.skip("the kernel has no target NFQUEUE for nftables")
    assert done.code == 1, done.output
    words = " ".join(done.output.split())
    assert "under a partition between nodes 0 and 1: RuntimeError" in words
    assert "--network 0-1:cut --replay" in words
    (log,) = done.folder.glob("cells/*/*/attempt-1/rank-0.log")
    told, counted = log.read_text().splitlines()[-2:]
    assert told == "--network: a partition between nodes 0 and 1"
    assert counted.endswith("packets from node 1 were disturbed")
    assert "--network: 0 of" not in counted
