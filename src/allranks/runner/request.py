"""Creates the request for an attempt at a job: everything that an engine needs, as plain data."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
"""Files that pytest and coverage.py look for in the folder of the tests and its parents."""

_NVIDIA_PREFIXES = ("GPU-", "MIG-")


@dataclass(frozen=True, kw_only=True)
class Pdb:
    """A debugger in a rank."""

    rank: int
    terminal: str


@dataclass(frozen=True, kw_only=True)
class AttemptOptions:
    """What a request contains in addition to its job."""

    run_id: str
    number: int
    seed: int
    gpus: tuple[str, ...] = ()
    passthrough: Passthrough = field(default_factory=Passthrough)
    pytest_args: tuple[str, ...] = ()
    carried: tuple[FileCopy, ...] = ()  # files that earlier runs or attempts of the job left
    test_durations: Mapping[str, float] = field(default_factory=dict)  # in seconds, to split the suite
    only: tuple[str, ...] | None = None  # node ids of the tests to run; None for all
    shuffle: int | None = None  # the seed for the order of the tests; None for the order of collection
    gpus_to_check: Mapping[str, str] = field(default_factory=dict)  # their names, by id
    pdb: Pdb | None = None
    selection_file: str = ""  # see AgentConfig.selection_file
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # see AgentConfig.plugins


def job_spec(matrix: Matrix, job: Job, environment: JobEnvironment, attempt: AttemptOptions) -> JobSpec:
    """The request for one attempt at a job."""
    gpus = tuple(_gpus_to_check(environment, attempt))
    root = matrix.root.resolve()
    code, paths = job.suite.home or root, (*job.suite.paths, *job.suite.files)
    node_resources = _resources_of_nodes(matrix, job, time_limit(matrix, job) + (TimeLimits.gpu_check if gpus else 0.0))
    return JobSpec(
        run_id=attempt.run_id,
        job_id=job.id,
        attempt=attempt.number,
        agent=_agent_config(matrix, job, attempt, environment.torch or job.cell.torch, gpus),
        code=code,
        files=(*files_of(code, paths, None if job.suite.home else root), *lists_of(os.environ, root)),
        carried=attempt.carried,
        image=environment.image,
        python=environment.python,
        python_path=(*environment.python_path, *job.suite.python_path),
        environment=dict(job.environment),
        gpus=attempt.gpus,
        passthrough=attempt.passthrough,
        resources=total(node_resources),
        node_resources=node_resources if len(node_resources) > 1 else (),
        seccomp=matrix.docker.seccomp,
    )


def _gpus_to_check(environment: JobEnvironment, attempt: AttemptOptions) -> Iterator[GpuToCheck]:
    """The GPUs that the job has to check, each with its id inside the job.

    Processes select NVIDIA GPUs by id and AMD GPUs by number. NVIDIA's own ids are also valid in a container, where all
    other GPUs are numbered from 0.
    """
    passthrough, in_container = attempt.passthrough, environment.image is not None
    for index, gpu in enumerate(attempt.gpus):
        if gpu not in attempt.gpus_to_check:
            continue
        visible = gpu
        if in_container and (passthrough.driver == "rocm" or not gpu.startswith(_NVIDIA_PREFIXES)):
            visible = str(index)
        elif passthrough.driver == "rocm":
            visible = str(passthrough.numbers[index])
        yield GpuToCheck(gpu=gpu, visible=visible, name=attempt.gpus_to_check[gpu])


def demand_of(matrix: Matrix, job: Job, *, gpus: int) -> Capacity:
    """What a job needs from its host: a core for each concurrent rank, and its memory limit."""
    ranks = ranks_at_once(job.cell.world_size, job.suite.overlap)
    return Capacity(gpus=gpus, cores=ranks, memory=total(_resources_of_nodes(matrix, job, 0)).memory_bytes >> 20)


def _resources_of_nodes(matrix: Matrix, job: Job, seconds: float) -> tuple[Resources, ...]:
    """The resource limits of a job on each of its nodes, which depend on the number of ranks there."""
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
    """The time limit of a job in seconds, including the rendezvous of several nodes."""
    limits = matrix.limits
    return limits.job + (limits.assembly if job.cell.nodes > 1 else 0.0)


def _agent_config(
    matrix: Matrix, job: Job, attempt: AttemptOptions, torch: str, gpus: tuple[GpuToCheck, ...]
) -> AgentConfig:
    limits, shard, seconds = matrix.limits, job.shard, attempt.test_durations
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
        share=JobShard(number=shard.number, count=shard.count, seconds=seconds) if shard else None,
        only=attempt.only,
        shuffle=attempt.shuffle,
        pdb_rank=attempt.pdb.rank if attempt.pdb else None,
        pdb_terminal=attempt.pdb.terminal if attempt.pdb else "",
        plugins=attempt.plugins,
        selection_file=attempt.selection_file,
        torch=torch,
        check_gpus=gpus,
    )


def files_of(code: Path, paths: tuple[Path, ...], root: Path | None) -> Iterator[FileCopy]:
    """The files that a job needs from a code base: these paths, and what pytest reads in their parent folders.

    Symlinks may not lead out of `root`, which is None for the suites of allranks.
    """
    names = ("conftest.py", "__init__.py", *_CONFIGURATION)
    extra = {parent / name for path in paths for parent in path.parents for name in names}
    present = [path for path in sorted(extra) if (code / path).is_file()]
    for path in (*present, *paths):
        yield FileCopy(source=code / path, target=path, root=root)


def lists_of(variables: Mapping[str, str], root: Path) -> Iterator[FileCopy]:
    """The lists of disabled and slow tests that PyTorch's environment variables name on this host.

    The user sets the variables, so a list may be anywhere, but a symlink in the repository must stay in it.
    """
    for variable in ("DISABLED_TESTS_FILE", "SLOW_TESTS_FILE"):
        if (path := Path(variables.get(variable, ""))).is_file():
            source = path.absolute()
            above = next((parent for parent in source.parents if parent.resolve() == root), None)
            source = source.resolve() if above is None else root / source.relative_to(above)
            yield FileCopy(source=source, target=LISTS / variable, root=None if above is None else root)
