"""The plug-in ``conformance``: tests the implementation of a torch.distributed backend."""
