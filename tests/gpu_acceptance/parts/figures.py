"""What is measured: the time of a test beside torch's own class, and the memory of ranks that share a GPU."""

import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise

from gpu_acceptance import notes
from gpu_acceptance.bench import SUITES, Bench
from gpu_acceptance.matrix_file import Cells, Suite
from gpu_acceptance.verdict import ImpossibleError

_ROUNDS = 2
_TESTS = {"kept": 41, "fresh": 5, "torch": 3}
"""Tests of a round in each way; all but the last give a time."""

_FEW_TESTS = {"kept": 6, "fresh": 3, "torch": 2}
"""Under ``--pretend``, where no figure means anything."""


def memory_of_ranks(bench: Bench) -> str:
    """The GPU's memory that 1, 2 and 4 ranks use together."""
    cells = Cells(backend="gloo", world_sizes=(1, 2, 4), gpus=1)
    run = bench.run("memory", cells, Suite(source=SUITES / "memory"))
    bench.expect_passes(run, cells, ["test_memory"])
    used = {note["ranks"]: note["used"] for note in notes.read(bench.notes, "memory")}
    bench.check(sorted(used) == [1, 2, 4], f"figures for {sorted(used)} ranks")
    each = (used[4] - used[1]) / 3
    bench.check(each > 0, f"used MiB by the number of ranks: {used}")
    bench.figure = f"{each:.0f} MiB a rank"
    return f"in use with 1, 2 and 4 ranks: {used[1]}, {used[2]} and {used[4]} MiB; {each:.0f} MiB a rank more"


def time_of_a_test(bench: Bench) -> str:
    """A test on kept ranks, in a fresh gang, and under MultiProcessTestCase, turn by turn."""
    if "expecttest" in bench.machine.lacking:
        msg = "expecttest, which torch's MultiProcessTestCase imports, is not installed (--wheels)"
        raise ImpossibleError(msg)
    size = 1 if bench.machine.pretended else min(2, len(bench.machine.gpus))
    cells = Cells(backend=bench.nccl, world_sizes=(size,), gpus=size)
    rounds, tests = (1, _FEW_TESTS) if bench.machine.pretended else (_ROUNDS, _TESTS)
    samples: dict[str, list[float]] = {way: [] for way in tests}
    done, took = 0, 0.0
    while done < rounds and took < bench.left:
        began = time.monotonic()
        for way, count in tests.items():
            samples[way] += _round(bench, cells, f"{way}.{done}", count)
        done, took = done + 1, time.monotonic() - began
    medians = {way: statistics.median(seconds) for way, seconds in samples.items()}
    name = f"{cells.backend} at world size {size}"
    told = ", ".join(f"{way} {medians[way] * 1e3:.1f} ms (of {len(samples[way])})" for way in tests)
    ratios = {way: medians["torch"] / medians[way] for way in ("kept", "fresh")}
    bench.figure = f"torch / kept {ratios['kept']:.0f}, torch / fresh {ratios['fresh']:.0f}"
    return f"{name}, medians over {done} rounds: {told}; {bench.figure}"


def _round(bench: Bench, cells: Cells, kind: str, count: int) -> list[float]:
    """The seconds from the start of each test of one way to the start of the next."""
    way = kind.partition(".")[0]
    if way == "torch":
        _run_torch(bench, cells, kind, count)
    else:
        isolation = {"kept": "file", "fresh": "test"}[way]
        suite = Suite(source=SUITES / "speed", isolation=isolation, variables={"TESTS": str(count), "KIND": kind})
        run = bench.run(kind, cells, suite)
        bench.expect_passes(run, cells, [f"test_all_reduce[{number}]" for number in range(count)])
    starts = [note["at"] for note in notes.read(bench.notes, kind)]
    bench.check(len(starts) == count, f"{len(starts)} of {count} tests said when they began")
    return [after - before for before, after in pairwise(starts)]


def _run_torch(bench: Bench, cells: Cells, kind: str, count: int) -> None:
    own = {"WORLD_SIZE": str(cells.world_sizes[0]), "BACKEND": cells.backend, "TESTS": str(count), "KIND": kind}
    own["GLOO_SOCKET_IFNAME"] = "lo"  # as the ranks of the process engine have it
    done = subprocess.run(
        [sys.executable, "-m", "gpu_acceptance.torch_speed"],
        env={**os.environ, **own, notes.FOLDER: str(bench.notes)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, flush=True)
    bench.check(done.returncode == 0, f"torch's own class failed: {done.stdout[-600:]}")
