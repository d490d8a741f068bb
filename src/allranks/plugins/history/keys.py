"""``[history]`` of the matrix file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from allranks.matrix.keys import key, whole

HISTORY_FILE = Path(".allranks-history.sqlite")
"""Beside the matrix file."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Records runs, for what is new, fixed or flaky; the table may be empty."""

    runs: int = key(whole(2, 100_000), "How many runs are kept, the newest ones.", default=500, example=1000)

    RETIRED: ClassVar[Mapping[str, str]] = {
        "file": f"Runs are recorded in {HISTORY_FILE} beside this file. "
        "`allranks report DIR --history FILE` records in another one.",
    }


TABLES = {"history": History}
