"""A module of the suite cannot be imported."""

FAULT = {
    "test": "collection",
    "verdict": ("error", "collection"),
    "words": ["test_import_fails.py cannot be collected"],
    "text": ["No module named 'nowhere'"],
    "seconds": 10,
}


import nowhere  # noqa: E402, F401 - the fault


def test_never():
    pass
