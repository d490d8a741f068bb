"""A rank's own part of what it gathers is the tensor that it sent, and no copy."""

from . import Delegate, register


class AliasedInput(Delegate):
    def allgather(self, outputs, inputs, opts):
        work = super().allgather(outputs, inputs, opts)
        work.wait()
        outputs[0][self.rank()].set_(inputs[0])
        return work


register(AliasedInput)
