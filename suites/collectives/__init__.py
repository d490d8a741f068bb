"""The collectives of torch.distributed, on any backend and world size.

Each rank works out by itself what it must end up with, and compares exactly. Where a backend has no such operation the
test is skipped with torch's exit code. A test that upsets its process group works on a sub-group of its own: the ranks,
and their default group, are shared by all tests of a file.
"""
