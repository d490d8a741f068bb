"""The clocks of a job, which neither tests nor an adjustment of the system time can change.

Tests may freeze time by replacing functions of the module ``time``, so the functions here are bound before a suite is
imported. The system time may be adjusted at any moment, so a job reads it only once; its later timestamps add the
monotonic clock, which all processes of a host share.
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
"""The variable with which the supervisor passes its :data:`ORIGIN` to the processes of its job."""


def _measured_origin() -> float:
    before, now, after = monotonic(), time.time(), monotonic()
    return now - (before + after) / 2


def _origin(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return _measured_origin()


ORIGIN: Final = _origin(os.environ.get(VARIABLE, ""))
"""When the monotonic clock was 0, in seconds since the epoch, as measured by the supervisor of the job."""


def now() -> float:
    """The timestamp for a record, in seconds since the epoch; it never decreases within a job."""
    return ORIGIN + monotonic()
