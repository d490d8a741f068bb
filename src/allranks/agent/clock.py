"""The clocks of a job: nobody sets them, and no test changes them.

Tools that freeze or patch time replace functions of the module ``time``, and a test may do that in any process of its
own. The functions here are bound before a suite is imported. The host's clock of the day may be set at any moment, so
it is read once for a job: its time stamps count on from there by the monotonic clock, of which a host has one.
"""

import os
import time
from functools import partial
from typing import Final

monotonic: Final = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
"""Seconds on the monotonic clock of this host."""

monotonic_ns: Final = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
"""Nanoseconds on the monotonic clock of this host."""

sleep: Final = time.sleep

VARIABLE: Final = "ALLRANKS_CLOCK_ORIGIN"
"""The variable by which the supervisor gives its :data:`ORIGIN` to the processes of its job."""


def _measured_origin() -> float:
    before, now, after = monotonic(), time.time(), monotonic()
    return now - (before + after) / 2


def _origin(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return _measured_origin()


ORIGIN: Final = _origin(os.environ.get(VARIABLE, ""))
"""When the monotonic clock was at 0, in seconds since the epoch, as the supervisor of the job found it."""


def now() -> float:
    """The time for a record, in seconds since the epoch; never earlier than one that any process of the job got."""
    return ORIGIN + monotonic()
