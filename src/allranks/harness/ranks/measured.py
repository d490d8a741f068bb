"""Coverage that a fork has measured: written before it reports its end, after which it may be killed at any time."""

import sys
import warnings
from contextlib import suppress


def save_coverage() -> None:
    """Write down what coverage.py has measured in this process so far, if it measures at all.

    A fork of a process that measures does so, too. Its data has a file of its own, named after the process, beside
    that of the fork server, which combines them.
    """
    module = sys.modules.get("coverage")
    with suppress(Exception), warnings.catch_warnings():
        measuring = module.Coverage.current() if module is not None else None
        if measuring is not None:
            # What a rank has not run is no news: its peers may have.
            warnings.simplefilter("ignore")
            measuring.stop()
            measuring.save()
            measuring.start()
