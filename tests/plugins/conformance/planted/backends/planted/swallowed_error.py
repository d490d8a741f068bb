"""An error of all_gather is swallowed, and the call looks as if it had gone well."""

from . import Delegate, Done, register


class SwallowedError(Delegate):
    def allgather(self, outputs, inputs, opts):
        try:
            return super().allgather(outputs, inputs, opts)
        except RuntimeError:
            return Done()


register(SwallowedError)
