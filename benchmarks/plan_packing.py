"""The plan of a matrix of 100,000 cells for 256 machines: how long it takes, and how even it is beside plain ways.

    PYTHONPATH=src python benchmarks/plan_packing.py

All ways get the same jobs, as many packs for each kind of machine, and are judged alike: by the seconds in which such a
machine is expected to be done with its pack. *Round robin* deals jobs out in their order; *longest first* gives each to
the pack with the smallest sum of seconds, without a look at what fits side by side.
"""

import heapq
import json
import random
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean
from time import perf_counter

from allranks.matrix.expand import Expansion, expand
from allranks.matrix.jobs import plan
from allranks.matrix.model import EnvRule, Image, Limits, Matrix, Rule, RunnerRule, Suite
from allranks.matrix.when import parse_condition
from allranks.report.durations import Durations
from allranks.report.run_files import Manifest
from allranks.schedule.machines.packs import PackGroup, PackOptions, divide_jobs, groups_of
from allranks.schedule.machines.plan_file import plan_document, read_plan, write_plan
from allranks.schedule.machines.planning import render_entries
from allranks.schedule.packing.backlog import makespan, ordered, simulate
from allranks.schedule.packing.division import divide
from allranks.schedule.packing.estimate import Capacity, Task, expected, packed_seconds

SIMULATED = 6
"""Packs that the scheduler's own simulator runs too: it takes a second for each."""

Way = Callable[[Sequence[Task], Capacity, int], list[list[Task]]]


def matrix_of_100_000() -> Matrix:
    """Fifty backends, so that jobs are of fifty lengths, on three kinds of machines."""
    cpu, gpu = parse_condition("gpu_count == 0"), parse_condition("gpu_count > 0")
    return Matrix(
        path=Path("matrix.toml"),
        axes={
            "backend": tuple(f"backend{number}" for number in range(50)),
            "world_size": tuple(range(1, 75)),
            "gpu_count": (0, 1, 2, 4, 8),
            "init_method": ("env", "tcp", "file"),
            "nodes": (1, 2),
            "torch": ("",),
        },
        excludes=(Rule(when=parse_condition("nodes > world_size"), reason="a rank for each node", line=1),),
        suites={"tests": Suite(name="tests", paths=(Path("tests"),))},
        images={"cpu": Image(name="cpu", when=cpu), "cuda": Image(name="cuda", when=gpu)},
        env=(EnvRule(set={"NCCL_DEBUG": "WARN"}, when=gpu),),
        limits=Limits(job=900),
        runners=(
            RunnerRule(when=cpu, labels=("self-hosted", "cpu"), cores=64, line=1),
            RunnerRule(when=parse_condition("gpu_count <= 4"), labels=("gpu-4",), gpus=4, cores=64, line=2),
            RunnerRule(labels=("gpu-8",), gpus=8, cores=96, line=3),
        ),
    )


def durations_of(matrix: Matrix) -> Durations:
    """Lengths as they come: most are short, some very long."""
    chance = random.Random(1)  # noqa: S311 - no secret
    return {"tests": {str(backend): {"t": chance.lognormvariate(2, 1)} for backend in matrix.axes["backend"]}}


def round_robin(tasks: Sequence[Task], _total: Capacity, count: int) -> list[list[Task]]:
    """In their order, one for each pack in turn."""
    return [list(islice(tasks, number, None, count)) for number in range(count)]


def longest_first(tasks: Sequence[Task], _total: Capacity, count: int) -> list[list[Task]]:
    """The longest first, each to the pack that has the smallest sum."""
    packs: list[list[Task]] = [[] for _ in range(count)]
    sums = [(0.0, number) for number in range(count)]
    for task in sorted(tasks, key=lambda task: -task.seconds):
        seconds, number = sums[0]
        packs[number].append(task)
        heapq.heapreplace(sums, (seconds + task.seconds, number))
    return packs


def described(seconds: Sequence[float]) -> str:
    """Shortest, longest, and how much earlier the first is done than the last."""
    spread = 1 - min(seconds) / max(seconds)
    return f"{min(seconds) / 60:6.1f} to {max(seconds) / 60:6.1f} min, spread {100 * spread:5.1f} %"


def packs_of(groups: Sequence[PackGroup], counts: Sequence[int], way: Way) -> list[tuple[PackGroup, list[Task]]]:
    """What a way makes of all groups."""
    return [
        (group, tasks)
        for group, count in zip(groups, counts, strict=True)
        for tasks in way(group.tasks, group.total, count)
    ]


def timed_plan(expansion: Expansion, durations: Durations) -> None:
    """Print how long each part of a plan takes, and how even it is."""
    begun = perf_counter()
    jobs = plan(expansion.matrix, expansion.cells)
    planned = perf_counter()
    division = divide_jobs(expansion.matrix, jobs, durations, PackOptions())
    divided = perf_counter()
    document = plan_document(
        run_id="benchmark",
        matrix=expansion.matrix,
        facts=Manifest(run_id=""),
        jobs=jobs,
        packs=division.packs,
        durations=durations,
        pytest_args=(),
    )
    file = Path("plan-packing-benchmark.json")
    write_plan(file, document)
    text = render_entries(document, division, jobs)
    done = perf_counter()
    size = file.stat().st_size
    read_plan(file)
    read = perf_counter()
    file.unlink()
    print(f"{len(jobs):,} jobs in {len(division.packs)} packs: {done - begun:.1f} s")
    print(f"  jobs {planned - begun:.1f} s, division {divided - planned:.1f} s, file {done - divided:.1f} s")
    print(f"  entries {len(text):,} characters (GitHub takes {1 << 19:,}), file {size / 1e6:.1f} MB")
    print(f"  a machine reads and checks the file in {read - done:.1f} s")
    entries = json.loads(text)["include"]
    print(f"ours           {described([entry['seconds'] for entry in entries])}")
    compare(expansion, durations, [pack.group for pack in division.packs])


def compare(expansion: Expansion, durations: Durations, ours: Sequence[object]) -> None:
    """Print what the plain ways come to with as many packs of each kind, and what the simulator says of ours."""
    jobs = plan(expansion.matrix, expansion.cells)
    groups = groups_of(expansion.matrix, jobs, expected(durations, jobs))
    counts = [sum(each == (group.rule, group.image) for each in ours) for group in groups]
    for name, way in (("round robin", round_robin), ("longest first", longest_first)):
        packs = packs_of(groups, counts, way)
        print(f"{name:14} {described([packed_seconds(tasks, group.total) for group, tasks in packs])}")
    packs = packs_of(groups, counts, divide)
    chosen = random.Random(2).sample(packs, SIMULATED)  # noqa: S311 - no secret
    ratios = [
        makespan(simulate(ordered(tasks, group.total), group.total)) / packed_seconds(tasks, group.total)
        for group, tasks in chosen
    ]
    print(f"the scheduler's simulator, over the estimate, in {SIMULATED} packs: {mean(ratios):.3f} ({max(ratios):.3f})")


def main() -> None:
    """Print the plan's time and spread, and those of the plain ways."""
    matrix = matrix_of_100_000()
    expansion = expand(matrix)
    timed_plan(expansion, durations_of(matrix))


if __name__ == "__main__":
    main()
