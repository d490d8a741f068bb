"""Sick GPUs of a host: what the driver reports, and a quarantine of those that did not compute.

The quarantine is a file for each GPU beside its lease. A job's own check of its GPUs is made in its container, with its
torch, so one failure may be the image's: too little memory, another user of the GPU, a torch of a fork's author. A GPU
that fails in two runs, with no success between them, is in quarantine until a person removes the file, or the host is
restarted: the folder of locks is in memory.
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

SICK_REMEDY: Final = "Reset or replace it (nvidia-smi -q, dmesg); or leave it out: --gpus, CUDA_VISIBLE_DEVICES."

_PREFIX: Final = "sick-"
_STRIKES: Final = 2


def sick_gpus(inventory: "Inventory") -> dict[str, str]:
    """The GPUs of an inventory that no job should get, each with the reason."""
    faults = {gpu: inventory.faults[gpu] for gpu in inventory.gpus if gpu in inventory.faults}
    return {**quarantined(inventory.gpus), **faults}


def report_failures(run_id: str, failures: Mapping[str, str]) -> None:
    """Record which GPUs did not compute in a run, each with the reason."""
    for gpu, why in failures.items():
        runs = list(dict.fromkeys((*_read(quarantine_file(gpu))[0], run_id)))
        descriptor = open_lock(quarantine_file(gpu))
        with suppress(OSError):  # a full disk
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"runs": runs, "why": why[:500]}).encode(), 0)
        os.close(descriptor)


def report_successes(gpus: Iterable[str]) -> None:
    """Forget the failures of GPUs that have computed since."""
    for path in map(quarantine_file, gpus):
        with suppress(OSError):
            os.truncate(path, 0)  # only its owner could remove it


def quarantined(gpus: Iterable[str]) -> dict[str, str]:
    """Those of the GPUs that are in quarantine, each with the reason and the way out."""
    found = {gpu: (path, _read(path)) for gpu in gpus for path in [quarantine_file(gpu)]}
    return {
        gpu: f"it did not compute in the runs {' and '.join(runs[-_STRIKES:])} ({why}). `rm {path}` ends this"
        for gpu, (path, (runs, why)) in found.items()
        if len(runs) >= _STRIKES
    }


def quarantine_file(gpu: str) -> Path:
    """The file that puts a GPU into quarantine."""
    return lock_folder() / f"{_PREFIX}{quote(gpu, safe='', errors='surrogateescape')}"


def _read(path: Path) -> tuple[list[str], str]:
    try:
        said = json.loads(path.read_bytes())
        return list(map(str, said["runs"])), str(said["why"])
    except (OSError, ValueError, TypeError, KeyError):
        return [], ""
