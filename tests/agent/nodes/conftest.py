import pytest
from agent_fixtures import run_nodes, start_nodes  # noqa: F401 - fixtures
from connections import local_connection

from allranks.agent.nodes.connection import NodeConnection


@pytest.fixture
def pair():
    """Return both ends of a connection."""
    ends = [NodeConnection(end) for end in local_connection()]
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def connect(request):
    """Opens more connections, and returns one end of each."""

    def open_one() -> NodeConnection:
        ends = [NodeConnection(end) for end in local_connection()]
        for end in ends:
            request.addfinalizer(end.close)
        ends[0].trust()
        return ends[0]

    return open_one
