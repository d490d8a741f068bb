"""torch's tests of RPC and distributed autograd on GPUs."""

from .torch_lists import tensorpipe_cuda

globals().update(tensorpipe_cuda(__name__))
