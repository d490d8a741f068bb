"""Fixtures of the tests of engines."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find

from fake_daemon import FakeClient


@pytest.fixture
def fake():
    """``fake(step=error, ...)``: a fake daemon in which these steps fail."""
    with ExitStack() as stack:

        def make(failures=None, **more) -> FakeClient:
            client = FakeClient({**(failures or {}), **more})
            stack.callback(client.close)
            return client

        yield make
