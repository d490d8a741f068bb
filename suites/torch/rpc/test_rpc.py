"""torch's tests of RPC: calls, remote references, remote modules and TorchScript, and its examples."""

from .torch_lists import tensorpipe

globals().update(tensorpipe(__name__, None))
