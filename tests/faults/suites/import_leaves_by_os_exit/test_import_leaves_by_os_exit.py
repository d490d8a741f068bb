"""The import of a module ends the agent."""

import os

FAULT = {
    "test": "collection",
    "verdict": ("error", "collection"),
    "exit_code": 1,
    "text": ["ended with exit status 3"],
    "seconds": 10,
}


os._exit(3)
