"""RPC in tests: a world for the time of a test, and waiting for what its peers do."""
