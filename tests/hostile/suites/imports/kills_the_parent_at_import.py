"""The import of a test file kills all ancestors."""

import os
import signal
from contextlib import suppress

import reach

TRUTH = {
    "engines": ["docker"],
    "attack_only": True,
    "tests": {"test_attack": {"ranks": ["any", "bad"], "may_be_absent": True}},
}

for pid in reach.ancestors():
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def test_attack(rank):
    assert rank == 0
