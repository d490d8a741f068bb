"""torch's own suite of torch.distributed, ``distributed_test`` of its wheel, bound to this cell.

torch takes backend and world size from the environment, where an agent puts them. The init method it takes from there
too, but only to leave out what cannot be tested with it, and has its ranks meet at a file; here they meet by the init
method of the cell. Needs ``expecttest``, which torch's test cases import.
"""

import os
import socket
from unittest import mock

# torch's own runner spawns ranks, which import this again; torch's set-up has changed INIT_METHOD by then.
_IS_SPAWNED = "C10D_SUITE_SCHEME" in os.environ
_SCHEME = os.environ.get("C10D_SUITE_SCHEME") or f"{os.environ['INIT_METHOD']}://"

with mock.patch.dict(os.environ, {"INIT_METHOD": os.environ["INIT_METHOD"] if _IS_SPAWNED else _SCHEME}):
    from torch.testing._internal.distributed import distributed_test


class TestDistributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # noqa: SLF001 - torch's own name
    """All tests of torch's suite."""

    @property
    def init_method(self) -> str:
        """What the ranks of a test meet by."""
        if _SCHEME == "file://":
            return f"file://{self.file_name}"
        return "env://" if _SCHEME == "env://" else f"tcp://localhost:{os.environ['MASTER_PORT']}"

    def setUp(self) -> None:
        """Choose where the ranks meet, and start them."""
        super().setUp()  # type: ignore[no-untyped-call]
        # What a rank that is spawned finds in the environment, a fork finds in the module.
        distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
        os.environ["C10D_SUITE_SCHEME"] = _SCHEME
        if _SCHEME != "file://":
            os.environ["MASTER_PORT"] = str(self._hold_port())
        self._spawn_processes()

    def _hold_port(self) -> int:
        """A port that nobody else can take as long as the test runs."""
        held = self.enterContext(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        return int(held.getsockname()[1])
