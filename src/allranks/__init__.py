"""allranks: distributed PyTorch test suites over a matrix, every rank accounted for."""

__version__ = "0.1.0"
