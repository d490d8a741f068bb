"""Ranks that are threads of one process: for tests that need neither processes nor network."""
