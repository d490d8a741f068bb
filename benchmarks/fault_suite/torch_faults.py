"""The planted fault under torch's own MultiProcessTestCase.

Appends to the file ``$HEARD`` one JSON object for each test, as soon as unittest knows its result.
"""

import itertools
import json
import os
import time
import unittest
from datetime import timedelta
from pathlib import Path

from torch import distributed
from torch.testing._internal.common_distributed import MultiProcessTestCase

from .faults import FAULT, wait_for_all


class TorchFaults(MultiProcessTestCase):
    """Each test spawns its ranks, as the class's users all do."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return 2

    def setUp(self) -> None:
        """Spawns the ranks."""
        super().setUp()
        self._spawn_processes()

    def _join(self) -> None:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{self.file_name}",
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=float(os.environ["GROUP_LIMIT"])),
        )

    def test_fault(self) -> None:
        """The fault."""
        self._join()
        FAULT.run()

    def test_next(self) -> None:
        """A good test after it."""
        self._join()
        wait_for_all()


class HeardResult(unittest.TestResult):
    """Writes down what unittest learns, and when."""

    _began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        """Start the clock."""
        super().startTest(test)
        self._began = time.time()

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        """Write it down."""
        super().stopTest(test)
        line = {"test": test.id().rpartition(".")[2], "seconds": time.time() - self._began, "message": self._said(test)}
        with Path(os.environ["HEARD"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _said(self, test: unittest.TestCase) -> str:
        kinds = {"error": self.errors, "failure": self.failures, "skipped": self.skipped}
        found = [f"{kind}: {exception(text)}" for kind, ends in kinds.items() for case, text in ends if case is test]
        return "; ".join(found) or "passed"


def exception(text: str) -> str:
    """What follows the frames of a traceback; all of a text that is none."""
    if not text.startswith("Traceback"):
        return text
    _, *lines = text.splitlines()
    return "\n".join(itertools.dropwhile(lambda line: line.startswith(" "), lines))


def main() -> None:
    """Run the fault, and the next test where it is what counts."""
    names = ["test_fault", "test_next"] if FAULT.judged == "test_next" else ["test_fault"]
    suite = unittest.TestSuite(TorchFaults(name) for name in names)
    suite.run(HeardResult())


if __name__ == "__main__":
    main()
