"""Messages that are lost on their way: a context ends everywhere nonetheless."""

import pytest
from torch.distributed import rpc

from allranks.testing import FaultyTensorPipe, FileBarrier, require_world_size, with_rpc

from . import engine
from .calls import synchronously
from .operands import dense
from .remote_work import add, assert_forgotten

LOSES_ENDS = FaultyTensorPipe(messages_to_fail=["CLEANUP_AUTOGRAD_CONTEXT_REQ"], messages_to_delay={}, failing_sends=1)
"""An agent that loses the first message of each context's end; torch sends it again after a second."""


@require_world_size(2)
@with_rpc(agent=LOSES_ENDS)
def test_context_ends_although_messages_are_lost(peers: list[str], file_barrier: FileBarrier) -> None:
    """The message of the end is sent again until it arrives."""
    with engine.context() as context:
        for peer in peers:
            synchronously(peer, add, (dense(0), dense(1)))
            assert synchronously(peer, engine.knows, (context,))
    assert not engine.knows(context)
    assert_forgotten(context, peers)
    file_barrier()


@pytest.mark.isolation("test")  # it needs no world
def test_agent_that_loses_messages_has_its_options() -> None:
    """By default, all messages that torch sends again are lost three times, and eight threads work."""
    agent = FaultyTensorPipe()
    options = agent.options("tcp://localhost:1", 5.0)
    assert agent.backend == rpc.backend_registry.BackendType["FAULTY_TENSORPIPE"]
    assert (options.num_worker_threads, options.num_fail_sends) == (8, 3)
    assert len(set(options.messages_to_fail)) == 4
