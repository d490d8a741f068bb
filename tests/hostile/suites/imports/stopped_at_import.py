"""The import of a test file stops the process."""

import os
import signal

TRUTH = {
    "attack_only": True,
    "limits": {"job": 25},
    "tests": {"test_attack": {"ranks": ["bad", "bad"], "may_be_absent": True}},
}

os.kill(os.getpid(), signal.SIGSTOP)
