"""One rank starts a process through multiprocessing's fork server, and leaves both behind."""

import multiprocessing.process
import os
import time

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "prints": ["rank 1", "multiprocessing.forkserver"],
    "seconds": 10,
}


def test_fault(rank):
    if rank == 1:
        # The path of a socket has at most 107 bytes, and a fault's temporary folder more.
        folder = f"/proc/self/fd/{os.open('.', os.O_PATH)}"
        multiprocessing.process.current_process()._config["tempdir"] = folder
        multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(3600,)).start()
        # Else the rank's own end would wait for it.
        multiprocessing.process._children.clear()
