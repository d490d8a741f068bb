"""Launcher tests that overlap: forks of the agent that each run some of them."""
