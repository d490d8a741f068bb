"""One rank recurses through C until its stack is at its end."""

import ctypes
import threading

FAULT = {
    "verdict": ("error", "crashed"),
    "leading": 1,
    "ranks": ["passed", "crashed"],
    "words": ["rank 1 was killed by SIGSEGV"],
    "seconds": 2,
}


@ctypes.CFUNCTYPE(None)
def recurse():
    recurse()


def test_fault(rank):
    if rank == 1:
        threading.stack_size(1 << 16)  # the interpreter's own limit comes long after the end of such a stack
        thread = threading.Thread(target=recurse)
        thread.start()
        thread.join()
