"""The part of the plug-in that runs inside jobs (see :mod:`allranks.agent.job_plugins`)."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.agent.supervisor.test_loop import LauncherWorkers, TestLoop
from allranks.plugins.stress.agent import outside_skew
from allranks.plugins.stress.agent.baseline_run import run_baseline
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.shrink_run import Trials, shrink_failures
from allranks.plugins.stress.agent.skew import max_delay, parse_delays
from allranks.plugins.stress.agent.stress_run import Repetitions
from allranks.protocol.repetitions import OFF

if TYPE_CHECKING:
    import pytest


def run_tests(settings: Mapping[str, Any], loop: TestLoop) -> None:
    """Repeat the tests, on one gang or on several at a time."""
    stress, config, folders = Stress(**settings), loop.job.config, loop.job.folders
    more = max_delay(stress.skew, config.world_size)
    options = tuple(replace(item, reruns=0, limit=item.limit.plus(more)) for item in loop.program.options)
    program = replace(loop.program, options=options)
    repetitions = Repetitions(stress, program, loop.job.journal)

    def make_worker(results: Path) -> TestLoop:
        return loop.worker(results, program, repetitions)

    def run_gang(trials: Trials, index: int) -> None:
        loop.worker(folders.results, trials.limited(program), trials).run_some([index])

    try:
        next_turn = repetitions.next_turn
        if loop.overlaps:
            LauncherWorkers(
                count=config.overlap, results=folders.results, make_worker=make_worker, next_batch=next_turn
            ).run()
        worker = make_worker(folders.results)
        while (turn := next_turn()) is not None:
            worker.run_some(turn)
        shrink_failures(repetitions, stress, program, config, folders.results, run_gang)
        run_baseline(repetitions, stress, program, loop.job)
    finally:
        repetitions.finish()


def configure(settings: Mapping[str, Any], session: "pytest.Config") -> None:
    """If there are delays, register the pytest plugin that delays calls of ranks."""
    if Stress(**settings).skew != OFF:
        # The supervisor also imports this module, but has neither pytest nor torch.
        from allranks.plugins.stress.agent.skewed_calls import SkewedCalls  # noqa: PLC0415

        session.pluginmanager.register(SkewedCalls(), "allranks-skew")


def disturbing(_settings: Mapping[str, Any], pids: Mapping[int, int], how: str) -> AbstractContextManager[None]:
    """Stop and slow down ranks, and keep cores busy."""
    return outside_skew.disturbing(pids, parse_delays(how))
