"""torch's tests of RPC and distributed autograd over an agent that loses messages."""

from .torch_lists import faulty

globals().update(faulty(__name__))
