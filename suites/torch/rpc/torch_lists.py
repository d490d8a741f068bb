"""torch's lists of RPC tests, as ``rpc_utils`` of its wheel has them, divided into suites.

The classes are those of the installed torch: what another version adds to a list is in a suite without a change here.
They start four ranks, or six, whatever the cell's world size is. These meet by a file, or by TCP where that is the
cell's init method: torch knows no other for its RPC tests. Needs ``expecttest``, which torch's test cases import.
"""

import importlib
import os
from collections.abc import Collection, Iterable

# torch's modules, which others here import too, read it while they are imported: their decorators skip by it.
if os.environ.get("INIT_METHOD") == "tcp":
    os.environ["RPC_INIT_WITH_TCP"] = "1"

from torch.testing._internal.distributed import rpc_utils
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

from .meet_by_tcp import MeetByTcp

AREAS = ("dist_autograd_test", "dist_optimizer_test", "ddp_under_dist_autograd_test")
"""Modules of torch, of this name in any of its packages, whose tests are a suite of their own; the rest is another."""


def tensorpipe(suite: str, area: str | None) -> dict[str, type]:
    """The tests of one area that need no GPU, over the TensorPipe agent.

    Args:
        suite: Name of the module that they are to belong to.
        area: One of :data:`AREAS`; None for what belongs to none of them.
    """
    listed = [*rpc_utils.GENERIC_TESTS, *rpc_utils.TENSORPIPE_TESTS]
    return _generate("TensorPipe", TensorPipeRpcAgentTestFixture, _of_area(listed, area), suite)


def tensorpipe_cuda(suite: str) -> dict[str, type]:
    """The tests that need GPUs, over the TensorPipe agent."""
    listed = [*rpc_utils.GENERIC_CUDA_TESTS, *rpc_utils.TENSORPIPE_CUDA_TESTS]
    return _generate("TensorPipe", TensorPipeRpcAgentTestFixture, listed, suite)


def faulty(suite: str) -> dict[str, type]:
    """The tests of an agent that loses messages, and delays them."""
    # Its import makes torch's enumeration of agents anew, and the TensorPipe tests need the one that they have.
    fixture = importlib.import_module("torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture")
    return _generate("Faulty", fixture.FaultyRpcAgentTestFixture, rpc_utils.FAULTY_AGENT_TESTS, suite)


def _of_area(classes: Iterable[type], area: str | None) -> list[type]:
    return [each for each in classes if _area(each) == area]


def _area(test_class: type) -> str | None:
    name = test_class.__module__.rpartition(".")[2]
    return name if name in AREAS else None


def _generate(prefix: str, agent: type, classes: Collection[type], suite: str) -> dict[str, type]:
    made: dict[str, type] = dict(rpc_utils.generate_tests(prefix, agent, list(classes), suite))
    if os.environ.get("INIT_METHOD") != "tcp":
        return made
    return {name: type(name, (MeetByTcp, each), {"__module__": suite}) for name, each in made.items()}
