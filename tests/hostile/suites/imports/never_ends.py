"""The import of a test file never ends, and lets nobody interrupt it."""

import signal

TRUTH = {
    "attack_only": True,
    "limits": {"job": 25},
    "tests": {"test_attack": {"ranks": ["bad", "bad"], "may_be_absent": True}},
}

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True:
    pass
