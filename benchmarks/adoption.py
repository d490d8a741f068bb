"""Test suites of public code bases, as they are, under allranks and under the command that their projects use.

From a folder with checkouts of them, whichever are there. Nothing in a checkout is changed but for a ``matrix.toml``,
which is removed at the end; no conftest of ours takes part. For each project:

- **plain**: its own command, which runs pytest;
- **allranks**: ``allranks run`` on the process engine, with the suite's keys below.

Both run ``--runs`` times by turns, with this interpreter, which needs what the projects need, and allranks. Outcomes of
all tests are compared in every run, by name: of several copies (pytest-xdist's ``--dist each``), the worst.

    git clone https://github.com/pytorch/ignite checkouts/ignite        # and others: see PROJECTS
    pip install -e checkouts/ignite ...
    python benchmarks/adoption.py checkouts [PROJECT ...] [--runs 3]

Exit status 1 where an outcome differs, where allranks takes more than 10 % and 2 s longer, and where it is less than
5 times as fast as torch's launcher.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree as ET

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
TWO_WORKERS = ("--dist=each", f"--tx=2*popen//python={sys.executable}")

SHARE = 1.1
SLACK = 2.0
"""Seconds; allranks may take this much longer, or the share, whichever is more."""

AS_FAST = 5.0
"""How many times as fast as torch's launcher it is to be."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """Tests of a code base.

    Attributes:
        folder: Of its checkout.
        tests: Their files.
        style: How the tests start their ranks.
        suite: Keys of the suite besides ``path``, as TOML.
        arguments: pytest's arguments on both sides.
        plain: pytest's arguments under the project's own command.
        environ: Variables that both sides need.
        plain_environ: Variables that the project's own command needs.
        has_torchs_launcher: Whether it is to be much faster.
    """

    folder: str
    tests: tuple[str, ...]
    style: str
    suite: str = ""
    arguments: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    plain_environ: Mapping[str, str] = field(default_factory=dict)
    has_torchs_launcher: bool = False


_IGNITE = Project(
    folder="ignite",
    tests=tuple(
        f"tests/ignite/{name}.py" for name in ("metrics/test_loss", "metrics/test_metric", "distributed/test_auto")
    ),
    style="workers of pytest-xdist",
    suite="process_group = false",
    arguments=("-m", "distributed"),
    plain=TWO_WORKERS,
    plain_environ={"WORLD_SIZE": "2"},
)

_METRICS = ("cohen_kappa", "jaccard", "matthews_corrcoef")
"""Those whose tests all pass with today's scikit-learn: each failure costs a process, and its pool, 4 s."""

_TORCHMETRICS = Project(
    folder="torchmetrics",
    tests=(
        "tests/unittests/bases",
        *(f"tests/unittests/classification/test_{name}.py" for name in _METRICS),
    ),
    style="a pool, made in pytest_sessionstart",
    suite='launches_ranks = true\nisolation = "job"',
    environ={"USE_PYTEST_POOL": "1"},
)

_OF_TORCHTITAN = (
    "test_embedding",
    "test_dist_gemm",
    "test_distributed_linear",
    "test_fsdp_moe_sharding",
    "test_loss_dtensor",
    "test_module",
    "flex_shard/test_dist_muon",
)
"""Files with ranks of torch's launcher; left out is one, which makes groups of one at a fixed port, too."""

PROJECTS = {
    "torchtitan": Project(
        folder="torchtitan",
        tests=tuple(f"tests/unit_tests/{name}.py" for name in _OF_TORCHTITAN),
        style="torch's MultiProcessTestCase",
        has_torchs_launcher=True,
    ),
    "torchtitan-alone": Project(
        folder="torchtitan",
        tests=("tests/unit_tests/test_parallel_dims.py",),
        style="a world of one at a fixed port",
        suite="launches_ranks = true",
    ),
    "ignite": _IGNITE,
    "ignite-accuracy": replace(_IGNITE, tests=("tests/ignite/metrics/test_accuracy.py",), arguments=()),
    "fairscale": Project(
        folder="fairscale",
        tests=("tests/optim/test_oss.py",),
        style="torch.multiprocessing.spawn",
        suite="launches_ranks = true",
    ),
    "accelerate": Project(
        folder="accelerate",
        tests=("tests/test_cpu.py",),
        style="its debug_launcher",
        suite="launches_ranks = true",
        arguments=("-k", "test_ops"),
    ),
    "fabric": Project(
        folder="lightning",
        tests=tuple(
            f"tests/tests_fabric/{name}.py"
            for name in (
                "strategies/test_ddp_integration",
                "strategies/launchers/test_multiprocessing_integration",
                "utilities/test_distributed",
            )
        ),
        style="Lightning's ddp_spawn and ddp_fork",
        suite='launches_ranks = true\nstart_children = "warm"\nisolation = "job"',
    ),
    "deepspeed": Project(
        folder="deepspeed/tests",
        tests=("unit/runtime/utils/test_partition.py",),
        style="its DistributedTest",
        environ={"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "4"},
    ),
    "torchmetrics": _TORCHMETRICS,
    "torchmetrics-short": replace(_TORCHMETRICS, tests=("tests/unittests/bases/test_ddp.py",)),
}

MATRIX = """\
# Written by benchmarks/adoption.py
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.adopted]
path = {paths}
{suite}

[process]
python = {python}

[limits]
test = 300
"""

Outcomes = Mapping[str, str]
_SEVERITY = ("passed", "skipped", "failure", "error")


@dataclass(frozen=True)
class Ran:
    """One run: its wall time in seconds, the outcome of each test, and what it printed."""

    seconds: float
    outcomes: Outcomes
    output: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the projects that are there; 1 if one of them does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, help="the folder of the checkouts")
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help=f"default: {', '.join(PROJECTS)}")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    if unknown := set(options.projects) - PROJECTS.keys():
        parser.error(f"there is no project {', '.join(sorted(unknown))}: choose from {', '.join(PROJECTS)}")
    names = [name for name in options.projects or PROJECTS if (options.checkouts / PROJECTS[name].folder).is_dir()]
    if not names:
        parser.error(f"no checkout of a project is in {options.checkouts}")
    print("| project | ranks | tests | outcomes | allranks | plain | ratio | |\n|---|---|--:|---|--:|--:|--:|---|")
    return max([_measure(name, PROJECTS[name], options.checkouts.resolve(), options.runs) for name in names])


def _measure(name: str, project: Project, checkouts: Path, runs: int) -> int:
    folder = checkouts / project.folder
    matrix = folder / "matrix.toml"
    if matrix.exists() and not matrix.read_text(encoding="utf-8").startswith(MATRIX.splitlines()[0]):
        sys.exit(f"{matrix} is not this benchmark's: move it away.")
    values = {"paths": project.tests, "python": sys.executable}
    text = MATRIX.format(suite=project.suite, **{name: json.dumps(value) for name, value in values.items()})
    matrix.write_text(text, encoding="utf-8")
    try:
        pairs = [(_run_plainly(project, folder), _run_by_allranks(project, folder)) for _ in range(runs)]
    finally:
        matrix.unlink()
    plain, ours = (statistics.median(pair[side].seconds for pair in pairs) for side in (0, 1))
    differing = sorted({line for one, other in pairs for line in _differences(one.outcomes, other.outcomes)})
    ratio = plain / ours
    is_quick = ours <= max(plain * SHARE, plain + SLACK) and (ratio >= AS_FAST or not project.has_torchs_launcher)
    same = f"{len(differing)} differ" if differing else f"same, {runs} times"
    count = len(pairs[0][0].outcomes)
    holds = not differing and is_quick and count > 0
    words = "" if holds else "**does not hold**"
    print(
        f"| {name} | {project.style} | {count} | {same} | {ours:.1f} s | {plain:.1f} s | {ratio:.2f} | {words} |",
        flush=True,
    )
    for line in differing:
        print(f"  {line}", file=sys.stderr)
    if differing:
        print(pairs[-1][1].output[-4000:], file=sys.stderr)
    return 0 if holds else 1


def _differences(plain: Outcomes, ours: Outcomes) -> list[str]:
    return [
        f"{test}: {plain.get(test, 'absent')} plainly, {ours.get(test, 'absent')} by allranks"
        for test in sorted(plain.keys() | ours.keys())
        if plain.get(test) != ours.get(test)
    ]


def _run_plainly(project: Project, folder: Path) -> Ran:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        command = [*PYTEST, *project.plain, *project.arguments, f"--junit-xml={report}", *project.tests]
        return _run(command, folder, {**project.environ, **project.plain_environ}, report)


def _run_by_allranks(project: Project, folder: Path) -> Ran:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "allranks", "run", "--engine", "process", "--results", scratch]
        more = ("--", *project.arguments) if project.arguments else ()
        return _run([*command, *more], folder, project.environ, Path(scratch, "latest", "junit.xml"))


def _run(command: Sequence[str], folder: Path, environ: Mapping[str, str], report: Path) -> Ran:
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    seconds = time.monotonic() - began
    if not report.exists():
        sys.exit(f"{done.stdout}\n{' '.join(command)} wrote no report (exit status {done.returncode}).")
    return Ran(seconds, _outcomes(report), done.stdout)


def _outcomes(report: Path) -> Outcomes:
    outcomes: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - of tests that have just run
        test = f"{case.get('classname')}::{case.get('name')}"
        tags = {"passed", outcomes.get(test, "passed"), *(child.tag for child in case)} & set(_SEVERITY)
        outcomes[test] = max(tags, key=_SEVERITY.index)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
