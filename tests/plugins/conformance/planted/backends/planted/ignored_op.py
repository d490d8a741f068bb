"""MAX does SUM."""

import torch.distributed as dist

from . import Delegate, register


class IgnoredOp(Delegate):
    def allreduce(self, tensors, opts):
        if opts.reduceOp == dist.ReduceOp.MAX:
            opts.reduceOp = dist.ReduceOp.SUM
        return super().allreduce(tensors, opts)


register(IgnoredOp)
