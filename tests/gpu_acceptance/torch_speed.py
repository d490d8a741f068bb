"""The same test under torch's MultiProcessTestCase; leaves notes as the suite ``speed`` does.

WORLD_SIZE=1 BACKEND=nccl TESTS=3 KIND=torch python -m gpu_acceptance.torch_speed
"""

import os
import sys
import unittest

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

from gpu_acceptance import notes
from gpu_acceptance.device import device


class TorchSpeed(MultiProcessTestCase):
    """Each test spawns its ranks, as the class's users all do."""

    @property
    def world_size(self) -> int:
        return int(os.environ["WORLD_SIZE"])

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _all_reduce(self) -> None:
        if self.rank == 0:
            notes.leave(os.environ["KIND"])
        place = device().place(self.rank)
        if place.type == "cuda":
            torch.cuda.set_device(place)
        meeting = f"file://{self.file_name}"
        dist.init_process_group(os.environ["BACKEND"], init_method=meeting, rank=self.rank, world_size=self.world_size)
        tensor = torch.ones(8, device=place)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [self.world_size] * 8
        dist.destroy_process_group()


for _number in range(int(os.environ["TESTS"])):
    setattr(TorchSpeed, f"test_{_number}", lambda self: self._all_reduce())


if __name__ == "__main__":
    outcome = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(TorchSpeed))
    sys.exit(not (outcome.wasSuccessful() and outcome.testsRun and not outcome.skipped))
