"""The unhealthy GPUs of a host: those that the driver reports, and those in quarantine after failed checks of jobs.

The quarantine has a file for each GPU, next to its lease. A job checks its GPUs in its container, with its torch, so a
single failure may have another cause: too little memory, another process on the GPU, or a torch from a fork. A GPU
that fails in two runs, with no success in between, is in quarantine until someone removes the file, or the host
restarts: the folder of locks is in memory.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from allranks.ownership import lock_folder, open_lock

if TYPE_CHECKING:
    from allranks.engines.gpus import Inventory

UNHEALTHY_REMEDY: Final = (
    "Reset or replace the GPU (see nvidia-smi -q and dmesg), or exclude it with --gpus or CUDA_VISIBLE_DEVICES."
)

_PREFIX: Final = "unhealthy-"
_STRIKES: Final = 2


def unhealthy_gpus(inventory: "Inventory") -> dict[str, str]:
    """The unhealthy GPUs of an inventory, each with the reason."""
    faults = {gpu: inventory.faults[gpu] for gpu in inventory.gpus if gpu in inventory.faults}
    return {**quarantined(inventory.gpus), **faults}


def report_failures(run_id: str, failures: Mapping[str, str]) -> None:
    """Record the GPUs that failed a job's check, each with the reason."""
    for gpu, why in failures.items():
        runs = list(dict.fromkeys((*_read(quarantine_file(gpu))[0], run_id)))
        descriptor = open_lock(quarantine_file(gpu))
        with suppress(OSError):  # a full disk
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"runs": runs, "why": why[:500]}).encode(), 0)
        os.close(descriptor)


def report_successes(gpus: Iterable[str]) -> None:
    """Forget earlier failures of GPUs that have passed the check."""
    for path in map(quarantine_file, gpus):
        with suppress(OSError):
            os.truncate(path, 0)  # only the user who created the file could remove it


def quarantined(gpus: Iterable[str]) -> dict[str, str]:
    """The GPUs that are in quarantine, each with the reason and how to end the quarantine."""
    found = {}
    for gpu in gpus:
        path = quarantine_file(gpu)
        runs, why = _read(path)
        if len(runs) >= _STRIKES:
            names = " and ".join(runs[-_STRIKES:])
            found[gpu] = f"it failed the check in the runs {names} ({why}). To use it again: `rm {path}`"
    return found


def quarantine_file(gpu: str) -> Path:
    """The file that puts a GPU into quarantine."""
    return lock_folder() / f"{_PREFIX}{quote(gpu, safe='', errors='surrogateescape')}"


def _read(path: Path) -> tuple[list[str], str]:
    try:
        fields = json.loads(path.read_bytes())
        return list(map(str, fields["runs"])), str(fields["why"])
    except (OSError, ValueError, TypeError, KeyError):
        return [], ""
