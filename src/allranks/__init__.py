"""allranks: distributed PyTorch test suites over a matrix, every rank accounted for.

PYTEST_DONT_REWRITE: pytest would warn that this package, which has an entry point, is imported before pytest in a job.
"""

__version__ = "0.1.0"
