"""Imports torch and the suite: which tests there are, how each is run, and the process that forks ranks."""
