"""torch's own suites of RPC and what is built on it, bound to a cell."""
