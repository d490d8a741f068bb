"""The last rank's sum of integers is off by one."""

import torch

from . import Delegate, register


class WrongSum(Delegate):
    def allreduce(self, tensors, opts):
        work = super().allreduce(tensors, opts)
        if self.rank() == self.size() - 1 and tensors[0].dtype is torch.int32:
            work.wait()
            tensors[0][0] += 1
        return work


register(WrongSum)
