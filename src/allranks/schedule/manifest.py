"""What run.json says of a run before there are results: all that is planned."""

import secrets
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import allranks
from allranks.matrix.model import Job
from allranks.report.run_files import Manifest, PlannedJob


def fresh_manifest(run_id: str, facts: Manifest, seed: int | None) -> Manifest:
    """A manifest without jobs.

    Args:
        run_id: The run.
        facts: What else it says: command, policy, dropped cells.
        seed: What every rank of every test starts from; None for a random one.
    """
    return replace(
        facts,
        run_id=run_id,
        allranks=allranks.__version__,
        python=sys.version.split()[0],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=secrets.randbits(31) if seed is None else seed,
    )


def announced(manifest: Manifest, jobs: Iterable[Job], pytest_args: Sequence[str]) -> Manifest:
    """The manifest with these jobs, too; one that it has stays as it is."""
    known = {job.id for job in manifest.jobs}
    cells, planned = dict(manifest.cells), list(manifest.jobs)
    for job in jobs:
        cells.setdefault(job.cell.id, job.cell.told_axes())
        if job.id not in known:
            entry = PlannedJob(id=job.id, cell=job.cell.id, suite=job.name, image=job.image.name)
            planned.append(replace(entry, pytest_args=tuple(pytest_args)))
    return replace(manifest, cells=cells, jobs=tuple(planned))
