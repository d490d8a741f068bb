"""One rank starts a daemon: forked twice, in a session of its own, deaf to SIGTERM, with all pipes of its rank open."""

import os
import signal
import time

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "prints": ["was still running; allranks killed it"],
    "seconds": 4,
}


def test_fault(rank):
    if rank == 1 and os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() != 0:
            os._exit(0)
        time.sleep(3600)
        os._exit(0)
