"""Lets the tests import the acceptance as ``scripts/gpu-acceptance`` does; its suites are run by it, not by us."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

sys.path[:0] = [str(TESTS), str(TESTS / "faults")]

collect_ignore = ["suites", "pretence"]
