"""What a cell costs beside torch's import and its tests.

Runs the README's first command (all of it: wrapper, nox, orchestrator, engine, report) and, in between, what it is
measured against: a bare ``docker run … true`` of the same image for the docker engine, ``import torch`` in the same
interpreter for the process engine. The overhead is the command's wall time without the moments in which some agent was
importing torch or some test was running, over the number of cells. Where an import overlaps the tests of the cell
before it, that moment is subtracted once, so nothing is counted in our favour twice.

    python benchmarks/cell_overhead.py docker --runs 5
    python benchmarks/cell_overhead.py process --runs 5

The first run of the command, which builds what is missing, is not measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.protocol.records import (
    JOURNAL,
    Finished,
    GangReady,
    GangStarted,
    Imported,
    Passed,
    RankEnded,
    Record,
    decode,
)

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [str(ROOT / "scripts" / "nox"), "-s", "dist(backend='gloo', world_size=2)"]
LIMITS = {"docker": 2.0, "process": 1 / 3}

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of the command, in seconds.

    Attributes:
        wall: From start to end.
        busy: How long an import of torch or a test was under way.
        cells: Number of cells.
    """

    wall: float
    busy: float
    cells: int

    @property
    def overhead(self) -> float:
        """Seconds for each cell."""
        return (self.wall - self.busy) / self.cells


def measure(engine: str) -> tuple[Sample, Path]:
    """Run the command once."""
    began = time.perf_counter()
    environment = {**os.environ, "ALLRANKS_ENGINE": engine}
    done = subprocess.run(COMMAND, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(f"the command failed:\n{done.stdout}{done.stderr}")
    folder = (ROOT / "results" / "latest").resolve()
    journals = [_records(path) for path in sorted(folder.glob(f"cells/*/*/attempt-1/{JOURNAL}"))]
    busy = total(interval for journal in journals for interval in (*imports(journal), *tests(journal)))
    return Sample(wall=wall, busy=busy, cells=len(journals)), folder


def _records(path: Path) -> list[Record]:
    return [decode(line) for line in path.read_bytes().splitlines()]


def imports(journal: Sequence[Record]) -> Iterator[Interval]:
    """When torch was imported."""
    for record in journal:
        if isinstance(record, Imported):
            yield record.at - record.seconds, record.at


def tests(journal: Sequence[Record]) -> Iterator[Interval]:
    """For each gang, from its first test's release to its last outcome."""
    began = last = None
    for record in journal:
        match record:
            case GangReady():
                began = record.at
            case Passed() | RankEnded():
                last = record.at
            case GangStarted() | Finished() if began and last:
                yield began, last
                began = last = None


def total(intervals: Iterable[Interval]) -> float:
    """Length of the union of some intervals."""
    length, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def bare_container(folder: Path) -> Callable[[], None]:
    """``docker run … true`` of the image that the run used."""
    image = _spec(folder)["image"]
    return lambda: _check(["docker", "run", "--rm", image, "true"])


def bare_import(folder: Path) -> Callable[[], None]:
    """``import torch`` in the interpreter that the run used."""
    python = _spec(folder)["python"]
    return lambda: _check([python, "-c", "import torch"])


def _spec(folder: Path) -> dict[str, Any]:
    job = next(folder.glob("cells/*/*/attempt-1/job.json"))
    spec: dict[str, Any] = json.loads(job.read_text(encoding="utf-8"))["spec"]
    return spec


def _check(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def timed(action: Callable[[], None]) -> float:
    """Seconds that an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> None:
    """Measure, print, and fail when the limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=LIMITS)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    _, folder = measure(options.engine)
    other = bare_container(folder) if options.engine == "docker" else bare_import(folder)
    pairs = [(measure(options.engine)[0], timed(other)) for _ in range(options.runs)]
    for sample, bare in pairs:
        figures = f"wall {sample.wall:6.2f} s, imports and tests {sample.busy:6.2f} s, {sample.cells} cells"
        print(f"{figures}: {sample.overhead:.3f} s a cell; alternative {bare:.3f} s")
    ours = statistics.median(sample.overhead for sample, _ in pairs)
    theirs = statistics.median(bare for _, bare in pairs)
    name = "docker run … true" if options.engine == "docker" else "import torch"
    print(f"median overhead {ours:.3f} s a cell, median {name} {theirs:.3f} s: ratio {ours / theirs:.2f}", end="")
    print(f" (at most {LIMITS[options.engine]:.2f})")
    sys.exit(ours / theirs > LIMITS[options.engine])


if __name__ == "__main__":
    main()
