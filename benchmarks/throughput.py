"""Many short jobs on the docker engine, and the same jobs in a shell loop of ``docker run``.

Each job is one suite with one test in a cell of one rank; in the loop each suite is a container of the same image in
which pytest runs it, as many at a time as allranks runs: one for each core. The loop's containers have the same network
(none), init process and read-only root, but no limits, no copies of code and results, no process group, and no report.

    python benchmarks/throughput.py                 # 200 jobs, three rounds
    python benchmarks/throughput.py --jobs 40 --rounds 5

Of both sides: wall time, and processor time and memory of whatever drives them (the command line of allranks; xargs and
the docker clients). The daemon's own time and the containers' are in neither.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [1]

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]

"""
SUITE = "def test_short():\n    import torch\n\n    assert torch.ones(2).sum() == 2\n"
LOOP = (
    "seq -w 1 {count} | xargs -P {cores} -I N docker run --rm --network none --init --read-only --tmpfs /tmp"
    " -v {code}:/code:ro -v {results}:/results --workdir /code {image}"
    " python3 -m pytest -q -p no:cacheprovider --junitxml /results/N.xml sN"
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a command took.

    Attributes:
        wall: Seconds.
        cpu: Seconds of processor time of it and its children, on this side of the daemon.
        memory: The largest of its processes, in MiB.
    """

    wall: float
    cpu: float
    memory: float


def main() -> None:
    """Measure, print, and fail when allranks is slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder)
        write_suites(code, options.jobs)
        image = build(code)
        sides = {"allranks": allranks(code), "xargs -P docker run": loop(code, options.jobs, image)}
        costs: dict[str, list[Cost]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, command in sides.items():
                costs[name].append(show(name, measure(command, code), options.jobs))
    compare(costs)


def write_suites(code: Path, count: int) -> None:
    """A matrix with one cell, and so many suites of one test."""
    code.chmod(0o755)  # the loop's containers look into it with another user's eyes
    names = [f"s{number:0{len(str(count))}}" for number in range(1, count + 1)]
    (code / "matrix.toml").write_text(MATRIX + "".join(f'[suites.{name}]\npath = "{name}"\n' for name in names))
    for name in names:
        (code / name).mkdir()
        (code / name / f"test_{name}.py").write_text(SUITE)
    (code / "results").mkdir(mode=0o777)
    (code / "results").chmod(0o777)


def build(code: Path) -> str:
    """Have the image made; its name."""
    measure([*allranks(code), "--suite", next(code.glob("s*")).name], code)
    journal = next(code.glob("runs/*/cells/*/*/attempt-1/job.json")).read_text()
    return journal.partition('"image": "')[2].partition('"')[0]


def allranks(code: Path) -> Sequence[str]:
    """The command of our side."""
    return [sys.executable, "-m", "allranks", "run", "--engine", "docker", "--results", str(code / "runs")]


def loop(code: Path, count: int, image: str) -> Sequence[str]:
    """The command of the other side."""
    results = code / "results"
    script = LOOP.format(count=count, cores=os.cpu_count(), code=code, results=results, image=image)
    return ["bash", "-c", script]


def measure(command: Sequence[str], folder: Path) -> Cost:
    """Run a command in a folder, in a process whose children are its alone."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            last = output.read().decode(errors="replace")[-2000:]
            sys.exit(f"{' '.join(command)[:200]} ended with {process.returncode}:\n{last}")
    return Cost(wall=wall, cpu=usage.ru_utime + usage.ru_stime, memory=largest(usage))


def largest(usage: resource.struct_rusage) -> float:
    """The most memory that one process had, in MiB; Linux counts in KiB."""
    return usage.ru_maxrss / 1024


def show(name: str, cost: Cost, jobs: int) -> Cost:
    """Print a measurement."""
    rate = f"{jobs / cost.wall:5.2f} jobs a second"
    print(f"{name:20} {cost.wall:7.1f} s, {rate}; cpu {cost.cpu:6.1f} s, {cost.memory:4.0f} MiB", flush=True)
    return cost


def compare(costs: dict[str, list[Cost]]) -> None:
    """Print the ratio of the medians."""
    ours, theirs = (statistics.median(cost.wall for cost in side) for side in costs.values())
    print(f"median {ours:.1f} s, {theirs:.1f} s: ratio {ours / theirs:.2f} (at most 1)")
    sys.exit(ours > theirs)


if __name__ == "__main__":
    main()
