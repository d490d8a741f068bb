"""RPC in tests: a world for the time of a test, and waits for its peers."""
