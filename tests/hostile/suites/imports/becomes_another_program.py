"""The import of a test file becomes a program that ends with the status of success."""

import os

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["bad", "bad"], "may_be_absent": True}}}

os.execv("/bin/true", ["true"])
