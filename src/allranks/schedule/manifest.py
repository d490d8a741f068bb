"""What run.json says of a run before there are results: all that is planned."""

import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import allranks
from allranks.matrix.model import Job

SCHEMA: Final = 1


def fresh_manifest(run_id: str, facts: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """A manifest without jobs.

    Args:
        run_id: The run.
        facts: What else it says: command, policy, dropped cells.
        seed: What every rank of every test starts from; None for a random one.
    """
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "allranks": allranks.__version__,
        "python": sys.version.split()[0],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": secrets.randbits(31) if seed is None else seed,
        **facts,
        "cells": {},
        "jobs": [],
    }


def announce(manifest: dict[str, Any], jobs: Iterable[Job], pytest_args: Sequence[str]) -> None:
    """Add jobs to a manifest; one that it has stays as it is."""
    known = {job["id"] for job in manifest["jobs"]}
    for job in jobs:
        manifest["cells"].setdefault(job.cell.id, job.cell.axes())
        if job.id not in known:
            entry = {"id": job.id, "cell": job.cell.id, "suite": job.name, "image": job.image.name}
            manifest["jobs"].append({**entry, "pytest_args": list(pytest_args)})
