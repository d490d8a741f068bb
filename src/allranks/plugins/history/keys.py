"""``[history]`` of the matrix file."""

from dataclasses import dataclass
from pathlib import Path

from allranks.matrix.keys import key, whole

HISTORY_FILE = Path(".allranks-history.sqlite")
"""Relative to the matrix file."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Records runs, so that reports show what is new, fixed or flaky; the table may be empty."""

    runs: int = key(whole(2, 100_000), "How many of the newest runs are kept.", default=500, example=1000)


TABLES = {"history": History}
