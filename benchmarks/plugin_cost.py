"""What the plugin costs a session that uses nothing of it: ``pytest --collect-only`` with and without it, in turns.

    python benchmarks/plugin_cost.py

allranks must be installed, since pytest finds the plugin by its entry point.
Prints the medians, their difference, and their ratio.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

ROUNDS = 21
WITH: tuple[str, ...] = ()
WITHOUT = ("-p", "no:allranks")


def seconds(folder: Path, arguments: tuple[str, ...]) -> float:
    """The time of one session."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *arguments, str(folder)]
    began = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - began


def main() -> None:
    """Print both sides of the comparison."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_it.py").write_text("def test_it(): pass\n")
        times: dict[tuple[str, ...], list[float]] = {WITH: [], WITHOUT: []}
        for _ in range(ROUNDS):
            for arguments, taken in times.items():
                taken.append(seconds(folder, arguments))
    with_it, without = median(times[WITH]), median(times[WITHOUT])
    print(f"with the plugin {1000 * with_it:.0f} ms, without {1000 * without:.0f} ms")
    print(f"difference {1000 * (with_it - without):.0f} ms, ratio {with_it / without:.3f}")


if __name__ == "__main__":
    main()
