"""The handle of an asynchronous all_reduce is done before the work has begun."""

import threading

from . import Delegate, Done, register


class EarlyHandle(Delegate):
    def allreduce(self, tensors, opts):
        if not opts.asyncOp:
            return super().allreduce(tensors, opts)
        late = threading.Timer(0.5, super().allreduce, (tensors, opts))
        late.daemon = True
        late.start()
        return Done()


register(EarlyHandle)
