"""The names of RPC workers."""


def worker_name(rank: int) -> str:
    """The name under which :func:`~allranks.testing.with_rpc` makes a rank known to its peers."""
    return f"worker{rank}"
