"""One rank raises an exception with a message of 50 MB."""

FAULT = {
    "verdict": ("failure", "failed"),
    "leading": 1,
    "ranks": ["passed", "failed"],
    "words": ["rank 1 failed", "ValueError: start"],
    "seconds": 8,
}


def test_fault(rank):
    if rank == 1:
        raise ValueError("start" + "x" * 50_000_000)
