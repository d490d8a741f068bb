"""One rank never comes back from a call into C without the interpreter's lock."""

import ctypes

FAULT = {
    "limits": {"process_group": 2, "test": 3},
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["passed", "timed_out"],
    "words": ["rank 1 timed out", "3 s", "test_endless_c_call.py"],
    "seconds": 6,
}


def test_fault(rank):
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex
    library = ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    if rank == 1:
        library.pthread_mutex_lock(mutex)
