"""The import of a module ends the agent."""

import os

FAULT = {
    "world_size": 2,
    "test": "job",
    "verdict": ("error", "job"),
    "exit_code": 3,
    "words": ["The agent ended before its work was done, with status 3"],
    "seconds": 10,
}


os._exit(3)
