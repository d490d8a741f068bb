"""torch's tests of the distributed optimizer."""

from .torch_lists import tensorpipe

globals().update(tensorpipe(__name__, "dist_optimizer_test"))
