"""Runs several faults at a time, because faults spend most of their time waiting."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from declaration import Fault
from fault_run import Seen, differences, run_fault

WIDTH = (os.cpu_count() or 1) + 1
"""Short runs at a time: their agents mostly import torch, and must not delay each other beyond the slack."""

LONG = 15.0
"""Seconds from which a run is long: it mostly waits, so twice as many run, in addition to the short ones."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run of a fault on one engine.

    Attributes:
        wrong: What was not as declared.
    """

    fault: Fault
    engine: str
    seen: Seen
    wrong: tuple[str, ...]

    @property
    def details(self) -> str:
        """The problems, and the details of the run."""
        wrong = "\n".join(f"- {problem}" for problem in self.wrong)
        return f"{self.fault.name} on {self.engine} (see {self.fault.source}):\n{wrong}\nseen:\n{self.seen.details}"


class SideBySide:
    """Runs faults in thread pools; at the end of the context, runs that have not started are canceled.

    Args:
        folder: The parent of the runs' folders. The folder of a run without differences is removed at once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._long = ThreadPoolExecutor(2 * WIDTH)
        self._short = ThreadPoolExecutor(WIDTH)
        self._one = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._long, self._short, self._one):
            pool.shutdown(cancel_futures=True)

    def start(self, wanted: Iterable[tuple[Fault, str]]) -> list[Future[Outcome]]:
        """Start runs, the longest first, and those that need the whole machine after all others."""
        planned = list(wanted)
        if len(planned) > WIDTH:
            self._warm_up(planned)
        order = sorted(range(len(planned)), key=lambda index: -planned[index][0].seconds)
        shared = {
            index: self._pool(planned[index][0]).submit(self._run, *planned[index])
            for index in order
            if not planned[index][0].is_alone
        }
        before = list(shared.values())
        alone = {
            index: self._one.submit(self._run_after, before, *planned[index])
            for index in order
            if planned[index][0].is_alone
        }
        return [(shared | alone)[index] for index in range(len(planned))]

    def _warm_up(self, planned: Sequence[tuple[Fault, str]]) -> None:
        """Read torch from the disk once: in containers, several cold imports at a time have taken 30 s each."""
        for engine in {engine for _, engine in planned}:
            run_fault(min((fault for fault, on in planned if on == engine), key=_quickness), engine, self._new_folder())

    def _pool(self, fault: Fault) -> ThreadPoolExecutor:
        return self._long if fault.seconds >= LONG else self._short

    def _new_folder(self, name: str = "warm-up-") -> Path:
        return Path(tempfile.mkdtemp(prefix=name, dir=self._folder))

    def _run_after(self, others: list[Future[Outcome]], fault: Fault, engine: str) -> Outcome:
        wait(others)
        return self._run(fault, engine)

    def _run(self, fault: Fault, engine: str) -> Outcome:
        folder = self._new_folder(f"{fault.name}-{engine}-")
        seen = run_fault(fault, engine, folder)
        wrong = tuple(differences(fault, seen))
        if not wrong:
            shutil.rmtree(folder, ignore_errors=True)
        return Outcome(fault=fault, engine=engine, seen=seen, wrong=wrong)


def _quickness(fault: Fault) -> tuple[float, str]:
    return fault.seconds, fault.name
