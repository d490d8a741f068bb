"""torch's tests of DistributedDataParallel under distributed autograd."""

from .torch_lists import tensorpipe

globals().update(tensorpipe(__name__, "ddp_under_dist_autograd_test"))
