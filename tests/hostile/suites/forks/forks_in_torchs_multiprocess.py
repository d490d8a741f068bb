"""A forked child returns in place of rank 1 of torch's MultiProcessTestCase, which fails."""

import os
import time

from torch.testing._internal.common_distributed import MultiProcessTestCase

TRUTH = {"tests": {"Multi::test_attack": {"ranks": [], "is_bad": True}}}


class Multi(MultiProcessTestCase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_attack(self):
        if self.rank == 1:
            if os.fork() == 0:
                return
            time.sleep(2)
            raise AssertionError
