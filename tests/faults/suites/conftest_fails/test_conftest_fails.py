"""The conftest of a suite fails."""

FAULT = {
    "test": "collection",
    "verdict": ("error", "collection"),
    "words": ["cannot be collected"],
    "text": ["the conftest is broken"],
    "seconds": 10,
}


def test_never():
    pass
