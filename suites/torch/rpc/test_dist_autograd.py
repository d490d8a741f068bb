"""torch's tests of distributed autograd."""

from .torch_lists import tensorpipe

globals().update(tensorpipe(__name__, "dist_autograd_test"))
