"""A process of multiprocessing runs on as the rank, out of its target by an exception; rank 1 fails."""

import multiprocessing
import os

TRUTH = {"tests": {"test_attack": ["honest", "bad"]}}


def test_attack(rank, request):
    if rank == 1:
        process = multiprocessing.get_context("fork").Process(target=go_on, args=(request,))
        process.start()
        process.join(2)
        raise AssertionError


def go_on(request):
    """Run the rest of the session's tests as if this were the rank."""
    items = request.session.items
    for item, following in zip(items, [*items[1:], None], strict=True):
        request.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    os._exit(0)
