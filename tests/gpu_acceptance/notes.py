"""What ranks tell the part of the acceptance that started them: a file each, in a folder that the part names."""

import json
import os
import time
from pathlib import Path
from typing import Any

FOLDER = "GPU_ACCEPTANCE_NOTES"
"""The variable that names the folder."""


def leave(kind: str, **facts: Any) -> None:
    """Write a note, whole or not at all.

    Args:
        kind: What it is about.
        facts: What it says, beside the process, its job, and the time of the host's monotonic clock.
    """
    facts |= {
        "kind": kind,
        "pid": os.getpid(),
        "run": os.environ.get("ALLRANKS_JOB_OF_RUN", ""),
        "at": time.monotonic(),
    }
    path = Path(os.environ[FOLDER], f"{kind}-{os.getpid()}-{time.monotonic_ns()}.json")
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(facts))
    draft.rename(path)


def read(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The notes of a kind, in the order of their times."""
    return sorted((json.loads(path.read_text()) for path in folder.glob(f"{kind}-*.json")), key=lambda note: note["at"])
