"""The bodies under torch's own MultiProcessTestCase; prints the seconds of each test as one line of JSON.

The world size is in ``WORLD_SIZE``. A test's seconds run from before its set-up to after its tear-down; what this
process itself took to start and to import torch is not in them.
"""

import json
import os
import sys
import time
import unittest

from torch import distributed
from torch.testing._internal.common_distributed import MultiProcessTestCase

from .bodies import BODIES


class TorchBodies(MultiProcessTestCase):
    """Each test spawns its ranks, as the class's users all do."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return int(os.environ["WORLD_SIZE"])

    def setUp(self) -> None:
        """Spawns the ranks."""
        super().setUp()
        self._spawn_processes()

    def _run_body(self, name: str) -> None:
        # The class has made the file already, and a store takes an empty one.
        meeting = f"file://{self.file_name}"
        distributed.init_process_group("gloo", init_method=meeting, rank=self.rank, world_size=self.world_size)
        BODIES[name]()

    def test_all_reduce(self) -> None:
        """See the body."""
        self._run_body("all_reduce")

    def test_broadcast(self) -> None:
        """See the body."""
        self._run_body("broadcast")

    def test_all_gather(self) -> None:
        """See the body."""
        self._run_body("all_gather")

    def test_barrier(self) -> None:
        """See the body."""
        self._run_body("barrier")

    def test_send_and_receive(self) -> None:
        """See the body."""
        self._run_body("send_and_receive")


class TimedResult(unittest.TestResult):
    """Notes how long each test takes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        """Start the clock."""
        self._began = time.perf_counter()
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        """Stop the clock."""
        super().stopTest(test)
        self.seconds.append(time.perf_counter() - self._began)


def main() -> None:
    """Run all tests."""
    result = TimedResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(TorchBodies).run(result)
    for test, text in (*result.errors, *result.failures):
        sys.exit(f"{test}: {text}")
    print(json.dumps(result.seconds))


if __name__ == "__main__":
    main()
