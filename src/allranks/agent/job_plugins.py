"""The parts of plug-ins that run inside jobs.

A job description lists the plug-ins of the job with their settings (:attr:`AgentConfig.plugins`). The part of a plug-in
that runs in jobs is its folder ``agent``. It needs only the standard library, torch and pytest, and imports only
:mod:`allranks.agent` and :mod:`allranks.protocol`. Its module ``hooks`` has some of these functions, whose first
argument is the plug-in's settings:

``run_tests(settings, loop)``
    Runs the tests of a :class:`~allranks.agent.supervisor.test_loop.TestLoop` instead of the loop itself, and repeats
    them as a :class:`~allranks.agent.supervisor.test_loop.RepetitionPlan` decides. Only one plug-in of a job can
    have it.
``configure(settings, session)``
    Registers pytest plugins with the :class:`pytest.Config` of the session that ranks are forked from.
``disturbing(settings, pids, how)``
    Returns a context manager that disturbs ranks of this host while their test runs. It gets the process id of each
    rank, and the result of :meth:`~allranks.agent.supervisor.test_loop.RepetitionPlan.disturbance`.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from allranks.protocol.config import AgentConfig


class JobPluginError(Exception):
    """A plug-in cannot run in this job; the message is a sentence with the reason."""


def check_plugins(config: AgentConfig) -> None:
    """Import the plug-ins of a job.

    Raises:
        JobPluginError: A plug-in cannot be imported, or two of them have ``run_tests``.
    """
    for name in config.plugins:
        try:
            _hooks_of(name)
        except Exception as error:
            msg = f"The plug-in {name} cannot run in this job: {type(error).__name__}: {error}."
            raise JobPluginError(msg) from error
    runners = [name for name in config.plugins if hasattr(_hooks_of(name), "run_tests")]
    if len(runners) > 1:
        msg = f"Only one plug-in of a job can run its tests, but {' and '.join(runners)} do."
        raise JobPluginError(msg)


def functions(config: AgentConfig, name: str) -> Iterator[Callable[..., Any]]:
    """The functions with this name in the plug-ins of a job, bound to the settings of their plug-in."""
    for plugin, settings in config.plugins.items():
        if (function := getattr(_hooks_of(plugin), name, None)) is not None:
            yield partial(function, settings)


def _hooks_of(name: str) -> ModuleType:
    return importlib.import_module(f"allranks.plugins.{name}.agent.hooks")
