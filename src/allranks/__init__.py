"""Runs distributed PyTorch test suites on every rank of a matrix, and reports the outcome of every rank.

PYTEST_DONT_REWRITE: in a job, pytest would warn that this package, which has an entry point, was already imported.
"""

__version__ = "0.1.0"
