"""The import of a test file kills the process."""

import os
import signal

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["bad", "bad"], "may_be_absent": True}}}

os.kill(os.getpid(), signal.SIGKILL)
