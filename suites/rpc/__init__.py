"""RPC of torch: calls, remote references and their owners, futures, and the life of a world of workers.

All tests of a file share one world, and each must leave it without references to remote objects. A test whose world is
unlike that, or which ends it, has one of its own by ``with_rpc``, and stands at the end of its file: there, new ranks
cost least. Objects that the tests send are made from the rank, so a message that reaches the wrong worker is seen.
"""
