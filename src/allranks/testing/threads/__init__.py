"""Ranks that are threads of one process: for tests that want a world, and need neither processes nor a network."""
