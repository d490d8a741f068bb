"""Lets the tests of this folder import the helpers beside them, which pytest's importlib mode does not find."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
