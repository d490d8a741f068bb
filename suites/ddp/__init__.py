"""DistributedDataParallel, on any backend and world size.

Each rank works out what training over everybody's data in one process comes to, and compares its own model with that.
The ranks, and their default group, are shared by all tests: a test that upsets a process group works on a sub-group.
"""
