"""From a job of the plan to the request that an engine gets: printable, and made without any engine."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allranks.engines.base import (
    LISTS,
    FileCopy,
    JobEnvironment,
    JobSpec,
    Passthrough,
    Resources,
    ranks_at_once,
    resources,
    total,
)
from allranks.matrix.model import Job, Matrix
from allranks.protocol.config import AgentConfig, GpuToCheck, JobShard, TimeLimits, share_of
from allranks.runner.tasks import Capacity

_CONFIGURATION = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"),
    *("pyproject.toml", "tox.ini", "setup.cfg", ".coveragerc", ".coveragerc.toml"),
)
"""Files that pytest and coverage.py look for in the folder of the tests and those above it."""

_OF_NVIDIA = ("GPU-", "MIG-")


@dataclass(frozen=True, kw_only=True)
class Pdb:
    """A debugger in a rank."""

    rank: int
    terminal: str


@dataclass(frozen=True, kw_only=True)
class AttemptOptions:
    """The additions of one attempt to a job."""

    run_id: str
    number: int
    seed: int
    gpus: tuple[str, ...] = ()
    passthrough: Passthrough = field(default_factory=Passthrough)
    pytest_args: tuple[str, ...] = ()
    carried: tuple[FileCopy, ...] = ()  # files of an earlier job of the same cell and suite for this one
    # Earlier durations of the suite's tests, by node id; for a shard.
    seconds: Mapping[str, float] = field(default_factory=dict)
    only: tuple[str, ...] | None = None  # Node ids of the tests that it runs again; None for all
    shuffle: int | None = None  # the seed for the order of its tests; None for the order of their collection
    # Names of those of its GPUs that have not been seen to compute, by id.
    unchecked: Mapping[str, str] = field(default_factory=dict)
    pdb: Pdb | None = None
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # see AgentConfig.plugins


def job_spec(matrix: Matrix, job: Job, environment: JobEnvironment, attempt: AttemptOptions) -> JobSpec:
    """The request for one attempt at a job."""
    gpus = list(_gpus_to_check(environment, attempt))
    root = matrix.root.resolve()
    code, wanted = job.suite.home or root, (*job.suite.paths, *job.suite.files)
    each = _resources_of_nodes(matrix, job, time_limit(matrix, job) + (TimeLimits.gpu_check if gpus else 0.0))
    return JobSpec(
        run_id=attempt.run_id,
        job_id=job.id,
        attempt=attempt.number,
        agent=replace(
            _agent_config(matrix, job, attempt), torch=environment.torch or job.cell.torch, check_gpus=tuple(gpus)
        ),
        code=code,
        files=(*files_of(code, wanted, None if job.suite.home else root), *lists_of(os.environ, root)),
        carried=attempt.carried,
        image=environment.image,
        python=environment.python,
        python_path=(*environment.python_path, *job.suite.python_path),
        environment=dict(job.environment),
        gpus=attempt.gpus,
        passthrough=attempt.passthrough,
        resources=total(each),
        node_resources=each if len(each) > 1 else (),
        seccomp=matrix.docker.seccomp,
    )


def _gpus_to_check(environment: JobEnvironment, attempt: AttemptOptions) -> Iterator[GpuToCheck]:
    """The GPUs that the job has to check, each with its id inside the job.

    A process finds NVIDIA's by their ids, and AMD's by their numbers. In a container NVIDIA's own ids hold, too; all
    others count from 0 there.
    """
    passthrough, in_container = attempt.passthrough, environment.image is not None
    for place, gpu in enumerate(attempt.gpus):
        if gpu not in attempt.unchecked:
            continue
        visible = gpu
        if in_container and (passthrough.driver == "rocm" or not gpu.startswith(_OF_NVIDIA)):
            visible = str(place)
        elif passthrough.driver == "rocm":
            visible = str(passthrough.numbers[place])
        yield GpuToCheck(gpu=gpu, visible=visible, name=attempt.unchecked[gpu])


def demand_of(matrix: Matrix, job: Job, *, gpus: int) -> Capacity:
    """The demand of a job on its host: a core for each rank that may run at once, and the memory that it may use."""
    ranks = ranks_at_once(job.cell.world_size, job.suite.overlap)
    return Capacity(gpus=gpus, cores=ranks, memory=total(_resources_of_nodes(matrix, job, 0)).memory_bytes >> 20)


def _resources_of_nodes(matrix: Matrix, job: Job, seconds: float) -> tuple[Resources, ...]:
    """The limits of a job with this time limit on each of its nodes, by the ranks there."""
    cell = job.cell
    return tuple(
        resources(
            world_size=len(share_of(node, total=cell.world_size, nodes=cell.nodes)),
            memory_mib=matrix.limits.memory_mib,
            disk_mib=matrix.limits.disk_mib,
            seconds=seconds,
            overlap=job.suite.overlap,
        )
        for node in range(cell.nodes)
    )


def time_limit(matrix: Matrix, job: Job) -> float:
    """Seconds that a job may take: its own limit, and on several nodes what their rendezvous may take."""
    limits = matrix.limits
    return limits.job + (limits.assembly if job.cell.nodes > 1 else 0.0)


def _agent_config(matrix: Matrix, job: Job, attempt: AttemptOptions) -> AgentConfig:
    limits = matrix.limits
    return AgentConfig(
        cell=job.cell.id,
        suite=job.name,
        paths=tuple(map(str, job.suite.paths)),
        ignored=tuple(map(str, job.suite.ignored)),
        backend=job.cell.backend,
        world_size=job.cell.world_size,
        gpu_count=job.cell.gpu_count,
        init_method=job.cell.init_method,
        isolation=job.suite.isolation,
        overlap=job.suite.overlap,
        test_groups=job.suite.test_groups,
        process_group=job.suite.process_group,
        launches_ranks=job.suite.launches_ranks,
        unchecked_children=job.suite.unchecked_children,
        start_children=job.suite.start_children,
        limits=TimeLimits(
            process_group=limits.process_group,
            test=limits.test,
            job=limits.job,
            peer_grace=limits.peer_grace,
            assembly=limits.assembly,
            silence=limits.silence,
            settings=limits.settings,
        ),
        seed=attempt.seed,
        pytest_args=(*job.suite.pytest_args, *attempt.pytest_args),
        mixed_skip=matrix.policy.mixed_skip,
        nodes=job.cell.nodes,
        share=JobShard(number=job.shard.number, count=job.shard.count, seconds=attempt.seconds) if job.shard else None,
        only=attempt.only,
        shuffle=attempt.shuffle,
        pdb_rank=attempt.pdb.rank if attempt.pdb else None,
        pdb_terminal=attempt.pdb.terminal if attempt.pdb else "",
        plugins=attempt.plugins,
    )


def files_of(code: Path, wanted: tuple[Path, ...], root: Path | None) -> Iterator[FileCopy]:
    """The files that a job needs of a code base: the wanted ones, and what pytest reads in the folders above them.

    No file may lead out of `root`, which is None for the suites of allranks.
    """
    names = ("conftest.py", "__init__.py", *_CONFIGURATION)
    extra = [folder / name for folder in {parent for path in wanted for parent in path.parents} for name in names]
    present = [path for path in sorted(set(extra)) if (code / path).is_file()]
    for path in (*present, *wanted):
        yield FileCopy(source=code / path, target=path, root=root)


def lists_of(variables: Mapping[str, str], root: Path) -> Iterator[FileCopy]:
    """The lists of disabled and slow tests that PyTorch's variables name on this host, for engines that copy.

    The variables are the user's, so a list may be anywhere. One in the repository may not lead out of it.
    """
    for variable in ("DISABLED_TESTS_FILE", "SLOW_TESTS_FILE"):
        if (path := Path(variables.get(variable, ""))).is_file():
            source = path.absolute()
            above = next((parent for parent in source.parents if parent.resolve() == root), None)
            source = source.resolve() if above is None else root / source.relative_to(above)
            yield FileCopy(source=source, target=LISTS / variable, root=None if above is None else root)
