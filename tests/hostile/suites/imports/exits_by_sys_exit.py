"""The import of a test file raises SystemExit with the status of success, after its test."""

import sys

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["bad", "bad"], "may_be_absent": True}}}


def test_attack():
    pass


sys.exit(0)
