"""Both ranks leave a thread that never comes back from a call into C."""

import ctypes
import threading

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "seconds": 2,
}


def hang():
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


def test_fault():
    threading.Thread(target=hang).start()
