import pytest
from agent_fixtures import run_nodes, start_nodes  # noqa: F401 - fixtures
from connections import local_connection

from allranks.agent.nodes.connection import NodeConnection


@pytest.fixture
def pair():
    """Both ends of a connection."""
    ends = [NodeConnection(end) for end in local_connection()]
    yield ends
    for end in ends:
        end.close()
