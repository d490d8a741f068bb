"""Attacks on the collected items."""

import reach
from reach import attack


@attack("honest", "any")
def takes_the_name_of_an_earlier_test(rank, request):
    """Rank 1 takes the id of the test that it has failed, and passes under it."""
    if rank == 1:
        [victim] = [item for item in request.session.items if item.name == "test_victim"]
        reach.rename(request.node, victim.nodeid)
