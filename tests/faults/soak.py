"""Repeats every planted fault on every engine, and prints what came of it; exit status 1 on one wrong result.

python tests/faults/soak.py [COUNT] [FAULT ...] [--engine ENGINE]      # 20 times, every fault, here and in containers

`--engine slurm` starts a cluster for it, which takes root.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack, closing
from pathlib import Path

from declaration import CLUSTER, ENGINES, Fault, read_all
from fault_run import why_not_here
from side_by_side import Outcome, SideBySide
from trial_cluster import trial_cluster

from allranks.errors import EngineError
from allranks.images.docker_client import connect

COUNT = 20

Key = tuple[str, str]


def main(arguments: Sequence[str]) -> int:
    count, names, engines = _read(arguments)
    faults = [fault for fault in read_all().values() if not names or fault.name in names]
    began = time.monotonic()
    with ExitStack() as stack:
        if CLUSTER in engines and "SLURM_CLUSTER_DIR" not in os.environ:
            stack.enter_context(trial_cluster())
        # The folders of wrong runs stay in it.
        outcomes = _run(faults, engines, count, Path(tempfile.mkdtemp(prefix="allranks-soak-")))
    print(_table(outcomes))
    print(_not_run(faults, engines))
    wrong = sum(bool(outcome.wrong) for group in outcomes.values() for outcome in group)
    runs = sum(map(len, outcomes.values()))
    print(f"{runs} runs in {time.monotonic() - began:.0f} s, {wrong or 'none'} of them wrong")
    return 1 if wrong else 0


def _read(arguments: Sequence[str]) -> tuple[int, frozenset[str], list[str]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="[COUNT] [FAULT ...]")
    parser.add_argument("--engine", action="append", choices=[*ENGINES, CLUSTER])
    options = parser.parse_intermixed_args(arguments)
    first, *others = options.names or [str(COUNT)]
    count, names = (int(first), others) if first.isdecimal() else (COUNT, options.names)
    if unknown := set(names) - read_all().keys():
        sys.exit(f"There is no fault {', '.join(sorted(unknown))} in tests/faults/suites.")
    engines = options.engine or [engine for engine in ENGINES if engine == "process" or _daemon_answers()]
    return count, frozenset(names), engines


def _daemon_answers() -> bool:
    try:
        with closing(connect()):
            return True
    except EngineError as error:
        print(f"not in containers: no Docker daemon answers ({error.why})")
        return False


def _run(faults: Iterable[Fault], engines: Sequence[str], count: int, folder: Path) -> dict[Key, list[Outcome]]:
    """Run everything, and print each wrong run when it ends; the folders of wrong runs are kept."""
    wanted = [(fault, engine) for fault in faults for engine in engines if not why_not_here(fault, engine)] * count
    found: dict[Key, list[Outcome]] = defaultdict(list)
    with SideBySide(folder) as side_by_side:
        for done, run in enumerate(as_completed(side_by_side.start(wanted)), start=1):
            outcome = run.result()
            found[outcome.fault.name, outcome.engine].append(outcome)
            if outcome.wrong:
                print(f"WRONG {outcome.details}\n", flush=True)
            if done % 50 == 0:
                print(f"{done} of {len(wanted)} runs", flush=True)
    return found


def _table(outcomes: Mapping[Key, Sequence[Outcome]]) -> str:
    width = max((len(name) for name, _ in outcomes), default=5)
    head = f"{'fault':{width}}  engine   runs  wrong  median s   max s"
    lines = [_row(*key, outcomes[key], width) for key in sorted(outcomes)]
    return "\n".join(["", head, *lines, ""])


def _row(name: str, engine: str, outcomes: Sequence[Outcome], width: int) -> str:
    seconds = [outcome.seen.seconds for outcome in outcomes if outcome.seen.seconds is not None] or [0.0]
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    figures = f"{len(outcomes):4}  {wrong:5}  {statistics.median(seconds):8.2f}  {max(seconds):6.2f}"
    return f"{name:{width}}  {engine:7}  {figures}"


def _not_run(faults: Iterable[Fault], engines: Sequence[str]) -> str:
    """What was left out, and why."""
    left_out = [(fault, engine, why_not_here(fault, engine)) for fault in faults for engine in engines]
    return "\n".join(f"not on {engine}: {fault.name} ({reason})" for fault, engine, reason in left_out if reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
