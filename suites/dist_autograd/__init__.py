"""Distributed autograd of torch: contexts, the graph that calls record, and the gradients of a backward pass.

Each gradient is compared with the one that torch's own autograd finds for the same function without any call. Numbers
are small integers, so sums are exact in any order. The tests of a file share an RPC world, except those that end it.
"""
