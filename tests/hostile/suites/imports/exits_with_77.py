"""The import of a test file ends the process with the status of a skip."""

import os

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["bad", "bad"], "may_be_absent": True}}}

os._exit(77)
