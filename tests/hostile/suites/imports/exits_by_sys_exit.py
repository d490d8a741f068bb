"""The import of a test file raises SystemExit with the status of success."""

import sys

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["bad", "bad"], "may_be_absent": True}}}

sys.exit(0)
