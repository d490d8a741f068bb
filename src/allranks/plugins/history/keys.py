"""``[history]`` of the matrix file."""

from dataclasses import dataclass
from pathlib import Path

from allranks.matrix.keys import key, whole

HISTORY_FILE = Path(".allranks-history.sqlite")
"""Beside the matrix file."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Records runs, for what is new, fixed or flaky; the table may be empty."""

    runs: int = key(whole(2, 100_000), "How many runs are kept, the newest ones.", default=500, example=1000)


TABLES = {"history": History}
