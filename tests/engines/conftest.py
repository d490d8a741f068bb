"""What tests of engines share: a Docker daemon that only remembers."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find

from fake_daemon import FakeClient


@pytest.fixture
def fake():
    """``fake(step=error, ...)``: a daemon that refuses these steps."""
    with ExitStack() as stack:

        def make(failures=None, **more) -> FakeClient:
            client = FakeClient({**(failures or {}), **more})
            stack.callback(client.close)
            return client

        yield make
