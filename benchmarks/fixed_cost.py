"""The fixed cost of a run: one passing test under pytest, ``pytest --ranks 2`` and ``allranks run``, in turns.

    python benchmarks/fixed_cost.py --runs 7

The first row imports torch and runs pytest in one process. The process engine is warm: each command runs once before it
is measured. CPU time is that of all processes of a command.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEST = "import torch\n\ndef test_sum():\n    assert torch.ones(2).sum() == 2\n"
MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]
gpu_count = [0]
init_method = ["env"]

[process]
python = "{python}"

[suites.one]
path = "suites/one"
"""
COMMANDS = {
    "pytest": ("pytest", "-q", "suites/one"),
    "pytest --ranks 2": ("pytest", "-q", "--ranks", "2", "suites/one"),
    "allranks run": ("allranks", "run", "--engine", "process"),
}


def measure(command: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """The wall time and the CPU time of a command, in seconds."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, os.times()
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used


def main() -> None:
    """Print the medians of each command, and their ratios to the first one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "suites/one").mkdir(parents=True)
        (folder / "suites/one/test_it.py").write_text(TEST)
        (folder / "matrix.toml").write_text(MATRIX.format(python=sys.executable))
        for command in COMMANDS.values():
            measure(command, folder)
        samples = [{name: measure(command, folder) for name, command in COMMANDS.items()} for _ in range(runs)]
    base = [statistics.median(sample["pytest"][kind] for sample in samples) for kind in (0, 1)]
    for name in COMMANDS:
        wall, cpu = (statistics.median(sample[name][kind] for sample in samples) for kind in (0, 1))
        print(f"{name:17} {wall:6.2f} s, ratio {wall / base[0]:.2f}; CPU {cpu:6.2f} s, ratio {cpu / base[1]:.2f}")


if __name__ == "__main__":
    main()
