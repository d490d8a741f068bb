"""RPC of torch: calls, remote references and their owners, futures, and the life of a world of workers.

All tests of a file share one world, and each must leave it without references to remote objects. A test whose world is
unlike that, or which ends it, has one of its own by ``with_rpc``, in a file of such tests: no process can have two at a
time. What the tests send depends on the rank, so a message that reaches the wrong worker is seen.
"""
