"""The import of a module calls sys.exit."""

import sys

FAULT = {
    "test": "collection",
    "verdict": ("error", "collection"),
    "others": {},
    "words": ["cannot be collected"],
    "seconds": 10,
}


sys.exit(3)
