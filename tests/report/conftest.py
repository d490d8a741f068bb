"""A run folder that a test fills as it needs."""

import sys
from pathlib import Path

from run_folders import part, run_folder, write_ranks

__all__ = ["part", "run_folder", "write_ranks"]

sys.path.insert(0, str(Path(__file__).parent))  # the helpers, which pytest's importlib mode does not find
