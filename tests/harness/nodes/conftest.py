import pytest
from connections import local_connection

from allranks.harness.nodes.connection import Wire


@pytest.fixture
def pair():
    """Both ends of a connection, as wires."""
    ends = [Wire(end) for end in local_connection()]
    yield ends
    for end in ends:
        end.close()
