"""What a test costs in a gang, beside torch's MultiProcessTestCase and beside the plainest lockstep loop.

The same five collectives (``gang_speed_suite/bodies.py``) on gloo, at world sizes 2 and 4, turn by turn:

- **torch**: ``MultiProcessTestCase``, which spawns the ranks of every test. Seconds from before a test's set-up to
  after its tear-down.
- **test**, **file**: a real agent of the process engine with that isolation, many copies of the bodies. Seconds from
  the agent's ``go`` to its last event, over the number of tests: forking the ranks, joining and leaving the process
  group, the events, and the XML of every rank are in it.
- **loop**: the plainest lockstep loop that can be written (``gang_speed_suite/lockstep.py``): fork once, run pytest's
  protocol for a test in every rank, report over a pipe, release the next; no supervision, no capture, no results.
  Seconds from before the forks to the end of the last rank, over the same number of tests as for ``file``.

Starting the one process that leads, its import of torch and its collection of the tests are in none of the four; what
torch's ranks import is in theirs, because they do so for every test. No side loads plugins of pytest, and each has one
OpenMP thread.

    PYTHONPATH=src python benchmarks/gang_speed.py --runs 5

The interpreter needs torch, and ``expecttest``, which torch's class imports. Exit status 1 when a ratio of medians
misses its limit.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from allranks.engines.base import JobSpec, resources
from allranks.engines.process import ProcessEngine
from allranks.ownership import own_run
from allranks.protocol.choices import Isolation
from allranks.protocol.config import AgentConfig, TimeLimits
from allranks.protocol.records import Finished, Passed, RankEnded, Record, Went

ROOT = Path(__file__).resolve().parents[1]
SUITE = Path(__file__).with_name("gang_speed_suite")
BODIES = 5
COPIES: Mapping[Isolation, int] = {"test": 4, "file": 80}
RUN_ID = f"benchmark-{os.getpid()}"
LIMITS = TimeLimits(process_group=60, test=120, job=600, peer_grace=3)

Way = Callable[[int, Path], float]
"""Runs the bodies at a world size, in a scratch folder that holds them; the seconds that one test took."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What the ratio of two ways' medians has to be.

    Attributes:
        at_least: The first way takes at least this many times as long as the second.
        at_most: The first way takes at most this many times as long.
    """

    ways: tuple[str, str]
    at_least: float = 0.0
    at_most: float = float("inf")

    def holds(self, ratio: float) -> bool:
        """Whether a measured ratio is good."""
        return self.at_least <= ratio <= self.at_most

    @property
    def words(self) -> str:
        """The limit, in words."""
        return f"at least {self.at_least:g}" if self.at_least else f"at most {self.at_most:g}"


WANTED = (
    Limit(ways=("torch", "test"), at_least=25),
    Limit(ways=("torch", "file"), at_least=250),
    Limit(ways=("file", "loop"), at_most=1.5),
)


def torch_seconds(world_size: int, folder: Path) -> float:
    """Under torch's MultiProcessTestCase: the median of the tests."""
    seconds: list[float] = json.loads(
        _output(folder, ["-m", "gang_speed_suite.torch_bodies"], WORLD_SIZE=str(world_size))
    )
    return statistics.median(seconds)


def loop_seconds(world_size: int, folder: Path) -> float:
    """Under the plainest loop."""
    done = json.loads(
        _output(folder, ["-m", "gang_speed_suite.lockstep", str(world_size)], BENCHMARK_COPIES=str(COPIES["file"]))
    )
    return float(done["seconds"] / done["tests"])


def _output(folder: Path, arguments: Sequence[str], **variables: str) -> str:
    environment = {**os.environ, **surroundings(), **variables}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{arguments[1]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def surroundings() -> dict[str, str]:
    """The variables that every way gets."""
    return {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def agent_seconds(isolation: Isolation) -> Way:
    """In gangs of an agent, with this isolation."""
    return lambda world_size, folder: _of_agent(isolation, world_size, folder)


def _of_agent(isolation: Isolation, world_size: int, folder: Path) -> float:
    results = folder / f"{isolation}-{world_size}"
    results.mkdir()
    spec = job_spec(isolation, world_size, folder)
    with ProcessEngine(ROOT / "src").start(spec) as job:
        job.go()
        records: list[Record] = []
        job.wait(lambda _node, output: records.append(output) if isinstance(output, Record) else None)
        job.collect(results)
    seconds = _seconds(records, results, BODIES * COPIES[isolation] * world_size)
    shutil.rmtree(results)
    return seconds / (BODIES * COPIES[isolation])


def job_spec(isolation: Isolation, world_size: int, folder: Path) -> JobSpec:
    """The request to the engine."""
    agent = AgentConfig(
        cell=f"gloo-w{world_size}-g0-env",
        suite="bodies",
        paths=("gang_speed_suite/test_bodies.py",),
        backend="gloo",
        world_size=world_size,
        gpu_count=0,
        init_method="env",
        isolation=isolation,
        limits=LIMITS,
        seed=1,
    )
    return JobSpec(
        run_id=RUN_ID,
        job_id=f"{agent.cell}/{isolation}",
        attempt=1,
        agent=agent,
        code=folder,
        python=sys.executable,
        environment={**surroundings(), "BENCHMARK_COPIES": str(COPIES[isolation])},
        resources=resources(world_size=world_size, memory_mib=None, seconds=LIMITS.job),
    )


def _seconds(records: Sequence[Record], results: Path, wanted: int) -> float:
    """From the agent's turn to its last record; ends the benchmark unless `wanted` outcomes came, all of them good."""
    at = {type(record): record.at for record in records}
    passed = sum(len(record.ranks) for record in records if isinstance(record, Passed))
    if passed != wanted or RankEnded in at:
        log = (results / "agent.log").read_text(encoding="utf-8")
        sys.exit(f"{passed} of {wanted} outcomes are passes:\n{log}")
    return at[Finished] - at[Went]


WAYS: Mapping[str, Way] = {
    "torch": torch_seconds,
    "test": agent_seconds("test"),
    "file": agent_seconds("file"),
    "loop": loop_seconds,
}


def measure(world_size: int, runs: int, folder: Path) -> dict[str, float]:
    """The medians of all ways, each run `runs` times, in turn."""
    samples: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(runs):
        for name, way in WAYS.items():
            samples[name].append(way(world_size, folder))
    for name, seconds in samples.items():
        spread = f"from {min(seconds) * 1e3:.2f} to {max(seconds) * 1e3:.2f}"
        print(f"world size {world_size}, {name:5}: median {statistics.median(seconds) * 1e3:9.2f} ms a test ({spread})")
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def judge(world_size: int, medians: Mapping[str, float]) -> bool:
    """Print the ratios; whether all hold."""
    held = True
    for limit in WANTED:
        first, second = limit.ways
        ratio = medians[first] / medians[second]
        held &= limit.holds(ratio)
        verdict = "" if limit.holds(ratio) else "  MISSED"
        print(f"world size {world_size}, {first} / {second}: {ratio:.2f} ({limit.words}){verdict}", flush=True)
    return held


def main() -> None:
    """Measure, print, and fail where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--world-size", type=int, action="append", help="repeatable; default: 2 and 4")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # torch's ranks would compile the suite again for each test
    with own_run(RUN_ID), tempfile.TemporaryDirectory(prefix="gang-speed-") as scratch:
        # Away from this repository, whose pytest configuration would otherwise count on all sides.
        folder = Path(shutil.copytree(SUITE, Path(scratch) / SUITE.name)).parent
        sizes = options.world_size or (2, 4)
        held = [judge(size, measure(size, options.runs, folder)) for size in sizes]
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
