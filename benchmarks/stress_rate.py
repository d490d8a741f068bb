"""What 1,000 repetitions of one gloo test at world size 2 cost, beside two ways to repeat it without allranks.

- **stress**: ``allranks stress --count N``, the whole command: kept ranks, each repetition supervised.
- **inside**: torch's launcher, once, with a pytest whose test has N parameters. What ends one repetition ends them all.
- **launcher**: torch's launcher with pytest, anew for each repetition, as a loop in a shell does (one is measured).

    PYTHONPATH=src python benchmarks/stress_rate.py [--count 1000] [--runs 3]

The interpreter needs torch. Prints medians. Exit status 1 if ``stress`` takes more than 8 s.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

LIMIT = 8.0
"""Seconds for 1,000 repetitions on two cores."""

BODY = "    tensor = torch.ones(8)\n    dist.all_reduce(tensor)\n    assert tensor.sum() == 16\n"
HEAD = "import pytest\nimport torch\nimport torch.distributed as dist\n\n\n"
GROUP = """@pytest.fixture(scope="session", autouse=True)
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


"""
MATRIX = """[matrix]
backend = ["gloo"]
world_size = [2]
gpu_count = [0]
init_method = ["tcp"]
[suites.one]
path = "test_one.py"
[images.cpu]
torch = "{torch}"
[process]
python = '{python}'
"""


def seconds_of(folder: Path, *command: str) -> float:
    """Run a Python module to its end; the seconds that it took."""
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def main() -> int:
    """Run the benchmark; return its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    launch = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pytest", "-q")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "matrix.toml").write_text(
            MATRIX.format(python=sys.executable, torch=version("torch").partition("+")[0])
        )
        (folder / "test_one.py").write_text(f"{HEAD}def test_sum():\n{BODY}")
        (folder / "test_alone.py").write_text(f"{HEAD}{GROUP}def test_sum():\n{BODY}")
        many = f'@pytest.mark.parametrize("_", range({options.count}))\ndef test_sum(_):\n{BODY}'
        (folder / "test_many.py").write_text(f"{HEAD}{GROUP}{many}")
        commands = {
            "stress": ("allranks", "stress", "--engine", "process", "-q", "--count", str(options.count)),
            "inside": (*launch, "test_many.py"),
            "launcher": (*launch, "test_alone.py"),
        }
        found: dict[str, list[float]] = {way: [] for way in commands}
        for _ in range(options.runs):
            for way, command in commands.items():
                found[way].append(seconds_of(folder, *command))
    medians = {way: statistics.median(times) for way, times in found.items()}
    medians["launcher"] *= options.count
    print(f"{options.count} repetitions, medians of {options.runs} runs; a launch for each is multiplied:")
    for way, seconds in medians.items():
        each = 1000 * seconds / options.count
        print(f"{way:9} {seconds:8.1f} s, {each:7.1f} ms each, ratio {seconds / medians['stress']:.2f}")
    return 0 if medians["stress"] * 1000 / options.count <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
