"""One rank of the first gang hangs before any code of the harness runs in it: in a handler of fork."""

import itertools
import os
import time
from contextlib import suppress

FAULT = {
    "limits": {"process_group": 2, "test": 6},
    "isolation": "test",
    "verdict": ("error", "timed_out"),
    "leading": 1,
    "ranks": ["errored", "timed_out"],
    "words": ["rank 1 timed out"],
    "seconds": 6,
}


forks = itertools.count()
number = [-1]


def count():
    number[0] = next(forks)


def hang():
    if number[0] != 2:  # the second rank: a process that ends at once has forked both
        return
    with suppress(FileExistsError):  # that of another gang goes on
        os.close(os.open("has-hung", os.O_CREAT | os.O_EXCL))
        time.sleep(3600)


os.register_at_fork(before=count, after_in_child=hang)


def test_fault():
    pass
