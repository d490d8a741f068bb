"""The parts of plug-ins that run inside jobs.

A job's description names the plug-ins that take part in it (:attr:`AgentConfig.plugins`), each with its own settings.
The part of a plug-in that runs in jobs is its folder ``agent``. It needs only the standard library, torch and pytest,
and imports only :mod:`allranks.agent` and :mod:`allranks.protocol`. Its module ``hooks`` has some of these functions,
each of which gets the plug-in's settings first:

``run_tests(settings, loop, with_results_dir)``
    Runs the tests of a :class:`~allranks.agent.supervisor.test_loop.TestLoop` in place of the loop's own order: once,
    and again as a :class:`~allranks.agent.supervisor.test_loop.RepetitionPlan` decides. One plug-in of a job can have
    it.
``configure(settings, session)``
    Registers pytest plugins with the :class:`pytest.Config` of the session that ranks are forked from.
``disturbing(settings, pids, how)``
    Returns a context manager that disturbs ranks of this host while their test runs. It gets the process of each rank,
    and what the plan said (:meth:`~allranks.agent.supervisor.test_loop.RepetitionPlan.disturbance`).
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from allranks.protocol.config import AgentConfig


class JobPluginError(Exception):
    """A plug-in that a job names cannot take part in it; the message says why, in a sentence."""


def check_plugins(config: AgentConfig) -> None:
    """Import the plug-ins of a job.

    Raises:
        JobPluginError: One cannot be imported, or two of them would run the tests.
    """
    for name in config.plugins:
        try:
            _hooks_of(name)
        except Exception as error:
            msg = f"The plug-in {name} cannot run in this job: {type(error).__name__}: {error}."
            raise JobPluginError(msg) from error
    runners = [name for name in config.plugins if hasattr(_hooks_of(name), "run_tests")]
    if len(runners) > 1:
        msg = f"Only one plug-in can run the tests of a job, and {' and '.join(runners)} would."
        raise JobPluginError(msg)


def functions(config: AgentConfig, name: str) -> Iterator[Callable[..., Any]]:
    """The functions of this name that the plug-ins of a job have, each with its settings."""
    for plugin, settings in config.plugins.items():
        if (function := getattr(_hooks_of(plugin), name, None)) is not None:
            yield partial(function, settings)


def _hooks_of(name: str) -> ModuleType:
    return importlib.import_module(f"allranks.plugins.{name}.agent.hooks")
