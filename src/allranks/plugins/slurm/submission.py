"""The batch script and the arguments of sbatch for a job, both made from its spec alone."""

import math
import shlex
from pathlib import Path
from typing import Final

from allranks.engines.base import JobSpec, unique_name
from allranks.plugins.slurm.agent.node_container import AgentFolders
from allranks.plugins.slurm.container import step_options, supervisor_python
from allranks.plugins.slurm.keys import Slurm

SUPERVISOR: Final = Path("allranks", "plugins", "slurm", "agent", "node_supervisor.py")
"""The program of a node's supervisor, relative to the folder of the package."""

_LONGEST_NAME = 140
"""Characters: folders and containers are named after the job."""


def job_name(spec: JobSpec) -> str:
    """The name of an attempt's SLURM job and folder, unique among all of this user's jobs."""
    return unique_name(spec.run_id, spec.job_id, str(spec.attempt), longest=_LONGEST_NAME)


def script(spec: JobSpec, folder: Path, package: Path, container: str | None = None) -> str:
    """The batch script, which starts a supervisor on each node; the first one to end does not end the others."""
    supervisor = package / SUPERVISOR
    step = [
        *("srun", "--no-kill", "--kill-on-bad-exit=0", "--input=none", "--export=ALL"),
        *(f"--nodes={spec.agent.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={_cores(spec)}"),
        f"--output={folder / 'srun.log'}",
        *step_options(container, AgentFolders(job=folder, code=spec.code, package=package)),
        *(supervisor_python(container, spec.python or "python3"), "-I", "-S", str(supervisor), str(folder)),
    ]
    return f"#!/bin/sh\nexec {shlex.join(step)}\n"


def _cores(spec: JobSpec) -> int:
    """The cores that a job requests on each node: as many as the node with the most ranks needs."""
    return max(spec.resources_on(node).cpus for node in range(spec.agent.nodes))


def request(spec: JobSpec, folder: Path, settings: Slurm) -> list[str]:
    """The arguments of sbatch for a job. The user's own come last, so they take precedence."""
    agent = spec.agent
    memory = max(spec.resources_on(node).memory_bytes for node in range(agent.nodes)) >> 20
    # The engine's own limit starts when the job is placed; SLURM's is the last resort.
    minutes = math.ceil((spec.resources.seconds + agent.limits.assembly) / 60) + 2
    return [
        *("--parsable", "--no-requeue", "--no-kill", "--export=ALL"),
        f"--job-name={folder.name}",
        f"--chdir={folder}",
        f"--output={folder / 'batch.log'}",
        *(f"--nodes={agent.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={_cores(spec)}"),
        *(f"--mem={memory}M", f"--time={minutes}"),
        *([f"--gpus-per-node={agent.gpu_count // agent.nodes}"] if agent.gpu_count else []),
        *settings.extra,
        str(folder / "job.sh"),
    ]
