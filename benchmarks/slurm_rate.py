"""Many short jobs on the slurm engine, and the same jobs in a shell loop of ``sbatch``.

Each job is one suite with one test in a cell of one rank and no process group. The loop's jobs have the same batch
script, arguments of sbatch, supervisor, agent and test; their folders are made beforehand, and one call of squeue a
second waits for them. They leave no report.

    eval "$(scripts/slurm-cluster env)"               # or any cluster whose nodes share the temporary folder
    python benchmarks/slurm_rate.py                   # 200 jobs, one round
    python benchmarks/slurm_rate.py --jobs 40 --rounds 3

Prints the ratio of the wall times, and how often allranks called squeue, which locks the controller's jobs. Most of the
time of both sides is the agents' import of torch.
"""

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.2
POLL = 5.0
"""Seconds that allranks must leave between two calls of squeue."""

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [1]

[images.here]
torch = "2.13.0"

[process]
python = "{python}"

[slurm]
spool = "{spool}"

"""
SUITE = '[suites.{name}]\npath = "{name}"\nprocess_group = false\n'
TEST = "def test_short():\n    assert 1 + 1 == 2\n"

COUNTED = '#!/bin/sh\ndate +%s.%N >>"{log}"\nexec "{command}" "$@"\n'
KEPT = """\
#!/bin/sh
for script; do :; done
cp -a "$(dirname "$script")" "{sample}/job"
printf '%s\\n' "$@" >"{sample}/arguments"
exec "{command}" "$@"
"""
LOOP = """\
for folder in {spool}/*; do
    xargs -d '\\n' sbatch <"$folder/arguments" >/dev/null || exit 1
done
while [ -n "$(squeue --me --noheader --name={names})" ]; do sleep 1; done
"""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round took.

    Attributes:
        ours: Seconds of ``allranks run``.
        theirs: Seconds of the loop.
        polls: When allranks called squeue, in seconds since the epoch.
    """

    ours: float
    theirs: float
    polls: tuple[float, ...]


def main() -> None:
    """Measure, print, and fail above a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurm-rate-") as folder:
        code = Path(folder)
        write_suites(code, options.jobs)
        keep_sample(code)
        rounds = [show(measure(code, options.jobs), options.jobs) for _ in range(options.rounds)]
    sys.exit(compare(rounds))


def write_suites(code: Path, count: int) -> None:
    """A matrix with one cell, and so many suites of one test."""
    names = [f"s{number:0{len(str(count))}}" for number in range(1, count + 1)]
    head = MATRIX.format(python=sys.executable, spool=code / "spool")
    (code / "matrix.toml").write_text(head + "".join(SUITE.format(name=name) for name in names))
    for name in names:
        (code / name).mkdir()
        (code / name / f"test_{name}.py").write_text(TEST)


def keep_sample(code: Path) -> None:
    """Run one job, and keep its folder and the arguments of sbatch as they were when it was submitted."""
    sample = code / "sample"
    sample.mkdir()
    first = next(code.glob("s*1")).name
    run([*allranks(code), "--suite", first], code, with_wrapper(code / "kept", "sbatch", KEPT, sample=sample))


def allranks(code: Path) -> Sequence[str]:
    """The command of our side."""
    return [sys.executable, "-m", "allranks", "run", "--engine", "slurm", "--results", str(code / "runs")]


def with_wrapper(folder: Path, name: str, text: str, **values: Path) -> Mapping[str, str]:
    """Variables with which a script is called in the place of a command of SLURM."""
    command = shutil.which(name)
    if command is None:
        sys.exit(f"There is no {name} here: start a cluster with scripts/slurm-cluster.")
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text.format(command=command, **values))
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> float:
    """Run a command in a folder; its wall time in seconds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - began
    if done.returncode != 0:
        last = (done.stdout + done.stderr)[-2000:]
        sys.exit(f"{' '.join(command)[:200]} ended with {done.returncode}:\n{last}")
    return wall


def measure(code: Path, count: int) -> Round:
    """Run both sides once."""
    log = code / "polls"
    log.write_text("")
    ours = run(allranks(code), code, with_wrapper(code / "counted", "squeue", COUNTED, log=log))
    polls = tuple(map(float, log.read_text().split()))
    loop = make_folders(code, count)
    theirs = run(["bash", "-c", loop], code, {})
    check(code / "bare", count)
    return Round(ours=ours, theirs=theirs, polls=polls)


def make_folders(code: Path, count: int) -> str:
    """The folders of the loop's jobs, each a copy of the sample; the loop itself."""
    bare = code / "bare"
    shutil.rmtree(bare, ignore_errors=True)
    arguments = (code / "sample" / "arguments").read_text()
    old = Path(arguments.splitlines()[-1]).parent
    names = [f"bare-{os.getpid()}-{number:04}" for number in range(count)]
    for name in names:
        folder = bare / name
        shutil.copytree(code / "sample" / "job", folder)
        script = folder / "job.sh"
        script.write_text(script.read_text().replace(str(old), str(folder)))
        (folder / "arguments").write_text(arguments.replace(str(old), str(folder)).replace(old.name, name))
        (folder / "go").touch()
    return LOOP.format(spool=bare, names=",".join(names))


def check(bare: Path, count: int) -> None:
    """Compare what the loop's jobs did with what was asked."""
    done = [path for path in bare.glob("*/node-0/exit.json") if '"status": 0' in path.read_text()]
    if len(done) != count:
        sys.exit(f"{count - len(done)} of the loop's {count} jobs have not ended well: see their logs")


def show(figures: Round, jobs: int) -> Round:
    """Print a round."""
    rates = f"{jobs / figures.ours:.2f} and {jobs / figures.theirs:.2f} jobs a second"
    print(f"allranks {figures.ours:.1f} s, sbatch {figures.theirs:.1f} s: {rates}", end="; ")
    print(f"{len(figures.polls)} calls of squeue, the closest {closest(figures.polls):.1f} s apart", flush=True)
    return figures


def closest(moments: Sequence[float]) -> float:
    """The fewest seconds between two of these moments."""
    return min((late - early for early, late in itertools.pairwise(moments)), default=float("inf"))


def compare(rounds: Sequence[Round]) -> bool:
    """Print the ratio of the medians; True if a limit is exceeded."""
    ours = statistics.median(round_.ours for round_ in rounds)
    theirs = statistics.median(round_.theirs for round_ in rounds)
    apart = min(closest(round_.polls) for round_ in rounds)
    print(f"median {ours:.1f} s, {theirs:.1f} s: ratio {ours / theirs:.2f} (at most {LIMIT})", end=", ")
    print(f"squeue every {apart:.1f} s (at least {POLL:g}, less the start of a process)")
    return ours / theirs > LIMIT or apart < POLL - 0.5


if __name__ == "__main__":
    main()
