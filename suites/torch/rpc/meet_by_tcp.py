"""What ranks need that meet by TCP: a port that is theirs, and a rank 0 that is the last to leave.

torch's fixture looks for a free port and lets it go again, so that another test, or TensorPipe in this one, may have
taken it when rank 0 wants it. And the store at which the ranks meet is in rank 0's process: where that ends while
another rank still counts who has shut down, this one's call ends with *connection reset by peer*. Ranks that torch
spawns take long to end, so that this is rare there; a fork ends at once.
"""

import fcntl
import socket
import time
import unittest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from torch.testing._internal.distributed import rpc_utils

PATIENCE = 2.0
"""Seconds that rank 0 waits for peers; those that a test has end early, or hang, do not keep it."""

if TYPE_CHECKING:
    from torch.testing._internal.common_distributed import MultiProcessTestCase
else:
    MultiProcessTestCase = unittest.TestCase


class MeetByTcp(MultiProcessTestCase):
    """To be mixed into a class of torch's RPC tests, before it."""

    def setUp(self) -> None:
        """Start the ranks with a port that stays theirs until the test is over."""
        with mock.patch.object(rpc_utils, "find_free_port", self._hold_port):
            super().setUp()

    def tearDown(self) -> None:
        """Remove what the ranks have marked their presence with."""
        super().tearDown()
        self._presence.unlink(missing_ok=True)

    def run_test(self, test_name: str, parent_pipe: Connection) -> None:
        """The test in a rank; rank 0 then waits for the others."""
        with self._presence.open("ab") as presence:
            if self.rank > 0:
                fcntl.flock(presence, fcntl.LOCK_SH)
            super().run_test(test_name, parent_pipe)
            if self.rank == 0:
                _wait_until_unlocked(presence.fileno())

    @property
    def _presence(self) -> Path:
        # Not torch's own file, which a FileStore may lock.
        return Path(f"{self.file_name}.present")

    def _hold_port(self) -> int:
        held = self.enterContext(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        return int(held.getsockname()[1])


def _wait_until_unlocked(descriptor: int) -> None:
    """Wait until no other process has a lock, :data:`PATIENCE` at the most: a lock ends with its process."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        else:
            return
