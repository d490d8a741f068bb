"""Plug-ins, and the hooks by which they extend allranks.

A plug-in is a module with functions named like the methods of :class:`Hooks`, each marked with :data:`implements`.
The engines of the core (:mod:`allranks.engines.hooks`) are registered first. allranks' own plug-ins are the modules
``allranks.plugins.NAME.hooks``; a missing one is left out. Other packages add theirs by the entry point
``allranks.plugins``. pluggy, pytest's library for hooks, calls them. What runs inside jobs has no pluggy: see
:mod:`allranks.agent.job_plugins`.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import pluggy

from allranks.errors import MEANING, AllranksError, ExitCode, PluginError, as_bug, described, shown

if TYPE_CHECKING:
    from allranks.matrix.expand import Expansion
    from allranks.matrix.model import Matrix
    from allranks.report.section import SectionMaker

OWN: Final = ("slurm", "stress", "history", "conformance", "github")
"""The names of allranks' own plug-ins."""

GROUP: Final = "allranks.plugins"
"""The package of allranks' own plug-ins, and the group of the entry points of others."""

CAN_FAIL: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "done, and there is no problem",
    **{code: MEANING[code] for code in (ExitCode.USAGE, ExitCode.INFRASTRUCTURE, ExitCode.INTERRUPTED)},
}
"""The exit codes of a command that runs no tests."""

JUDGES: Final = MEANING
"""The exit codes of a command that judges tests."""

_REPAIR: Final = "Repair or remove the package that adds it."

_SECTION_NAME: Final = re.compile(r"[a-z][a-z0-9_]*", re.ASCII).fullmatch

implements = pluggy.HookimplMarker("allranks")
"""Marks a plug-in's implementation of a hook."""

_hook = pluggy.HookspecMarker("allranks")


class Command(NamedTuple):
    """A command of ``allranks``."""

    name: str
    # Imported on first use. It has `Options`, a subclass of CommandOptions of :mod:`allranks.cli.parser`, and a
    # function `run` that takes one and returns an exit code.
    module: str
    codes: Mapping[ExitCode, str]  # those that its help lists, with their meaning
    meaning: str  # what it does, for the list of commands


class Hooks:
    """What a plug-in can implement. An implementation may leave out parameters that it does not need."""

    @_hook
    def allranks_commands(self) -> Sequence[Command]:
        """Commands to add to ``allranks``; a name that is already there is refused."""
        raise NotImplementedError

    @_hook
    def allranks_options(self, command: str) -> type | None:
        """A dataclass of options to add to a command; None for other commands.

        Each field is made by :func:`allranks.cli.parser.option`; an option that is already there is refused. The
        command's ``options.added`` has the values, by this dataclass.

        Args:
            command: ``run``, ``report``, or the command of a plug-in that runs tests.
        """
        raise NotImplementedError

    @_hook
    def allranks_sections(self, options: Any, matrix: "Matrix | None") -> "Sequence[SectionMaker]":  # noqa: ANN401
        """Sections to add to the report that a command is about to make.

        Args:
            options: The options of the command, of its own dataclass.
            matrix: The matrix of the run; None if the command reports results that are there already.
        """
        raise NotImplementedError

    @_hook
    def allranks_engines(self) -> Mapping[str, str]:
        """Engines: by its name, the class of each, as in ``package.module:Class``, which is imported on first use.

        The class is a subclass of :class:`allranks.engines.base.Engine`. A name that is already there is refused.
        """
        raise NotImplementedError

    @_hook(firstresult=True)
    def allranks_run(
        self,
        expansion: "Expansion",
        results: Path,
        options: Any,  # noqa: ANN401
        run_here: Callable[[Any], ExitCode],
    ) -> ExitCode | None:
        """Do a run that an option of the plug-in asks for; None for any other run.

        Args:
            expansion: The matrix and its cells.
            results: The folder of all runs.
            options: The options of ``allranks run``, of its dataclass.
            run_here: Does the run in this process, on an :class:`~allranks.engines.base.Engine`, or on None: that which
                the options ask for.
        """
        raise NotImplementedError

    @_hook(firstresult=True)
    def allranks_ci_service(self, environ: Mapping[str, str]) -> object:
        """The CI service that runs this process: a :class:`allranks.runner.ci_service.CiService`, or None.

        Args:
            environ: The variables of this process.
        """
        raise NotImplementedError


def own_plugins() -> pluggy.PluginManager:
    """The engines of the core, and allranks' own plug-ins that are there."""
    manager = pluggy.PluginManager("allranks")
    manager.add_hookspecs(Hooks)
    manager.register(importlib.import_module("allranks.engines.hooks"), "allranks")
    for name in OWN if find_spec(GROUP) else ():
        if find_spec(f"{GROUP}.{name}") and find_spec(f"{GROUP}.{name}.hooks"):
            manager.register(importlib.import_module(f"{GROUP}.{name}.hooks"), name)
    return manager


@cache
def load_plugins() -> pluggy.PluginManager:
    """Import all plug-ins."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - its import takes as long as argparse and pluggy

    manager = own_plugins()
    for point in entry_points(group=GROUP):
        try:
            manager.register(point.load(), point.name)
        except (Exception, SystemExit) as error:
            msg = f"The plug-in {point.name} cannot be loaded ({point.value})."
            raise PluginError(msg, why=f"{described(error)}.", remedy=_REPAIR) from error
    return manager


def added_commands(own: Iterable[Command]) -> list[Command]:
    """The commands of all plug-ins, in the order of their registration."""
    found: dict[str, str] = {command.name: "allranks" for command in own}
    added: list[Command] = []
    for name, found_commands in _results(list, "allranks_commands"):
        for command in found_commands:
            if not isinstance(command, Command):
                msg = f"The plug-in {name} adds something that is not a command."
                raise PluginError(
                    msg,
                    why=f"Its hook allranks_commands returned {shown(command)}, which is not a Command.",
                    remedy=_REPAIR,
                )
            _refuse_second("command", command.name, name, found)
            added.append(command)
    return added


def added_options(command: str) -> list[type]:
    """The dataclasses of options that plug-ins add to a command: see :meth:`Hooks.allranks_options`."""
    added: list[type] = []
    for name, kind in _results(_as_it_is, "allranks_options", command=command):
        if kind is not None and not (isinstance(kind, type) and is_dataclass(kind)):
            msg = f"The plug-in {name} adds something that is not a dataclass of options."
            raise PluginError(msg, why=f"Its hook allranks_options returned {shown(kind)}.", remedy=_REPAIR)
        added += [] if kind is None else [kind]
    return added


def run_by_plugins(
    run_here: Callable[[Any], ExitCode],
    **given: Any,  # noqa: ANN401 - see Hooks.allranks_run
) -> ExitCode | None:
    """Have a plug-in do a run: see :meth:`Hooks.allranks_run`."""

    def run(engine: Any) -> ExitCode:  # noqa: ANN401
        try:
            return run_here(engine)
        except AllranksError:
            raise
        except Exception as error:
            raise as_bug(error) from error  # of allranks, not of the plug-in that calls it

    return cast("ExitCode | None", first_result(load_plugins(), "allranks_run", run_here=run, **given))


def section_makers(options: Any, matrix: "Matrix | None") -> "list[SectionMaker]":  # noqa: ANN401
    """The makers of the sections that plug-ins add to a report."""
    from allranks.report.section import RESERVED, SectionMaker  # noqa: PLC0415 - only for a report

    found = dict.fromkeys(RESERVED, "allranks")
    added: list[SectionMaker] = []
    for plugin, makers in _results(list, "allranks_sections", options=options, matrix=matrix):
        for maker in makers:
            name = getattr(maker, "name", None)
            if not (isinstance(maker, SectionMaker) and isinstance(name, str) and _SECTION_NAME(name)):
                msg = f"The plug-in {plugin} adds a section without a usable name."
                why = "It is a SectionMaker with a name of small letters, digits and '_'."
                raise PluginError(msg, why=why, remedy=_REPAIR)
            _refuse_second("section", name, plugin, found)
            added.append(maker)
    return added


def _results(take: Callable[[Any], Any], hook: str, **given: object) -> Iterator[tuple[str, Any]]:
    """What each plug-in's implementation of a hook returns, in the order of their registration, with its name."""
    for each in getattr(load_plugins().hook, hook).get_hookimpls():
        yield each.plugin_name, _result(hook, each, take, given)


def first_result(plugins: pluggy.PluginManager, hook: str, **given: object) -> object:
    """The first result of a hook that is not None, from the last registered plug-in on, as pluggy asks them."""
    for each in reversed(getattr(plugins.hook, hook).get_hookimpls()):
        if (found := _result(hook, each, _as_it_is, given)) is not None:
            return found
    return None


def _as_it_is(found: object) -> object:
    return found


def _result(  # what the hook returns is of any type
    hook: str, implementation: pluggy.HookImpl, take: Callable[[Any], Any], given: Mapping[str, object]
) -> Any:  # noqa: ANN401
    name = implementation.plugin_name
    try:
        return take(implementation.function(*(given[each] for each in implementation.argnames)))
    except AllranksError:
        raise
    except (Exception, SystemExit) as error:
        if name in {"allranks", *OWN}:
            raise
        msg = f"The plug-in {name} failed in its hook {hook}."
        raise PluginError(msg, why=f"{described(error)}.", remedy=_REPAIR) from error


def added_engines() -> Mapping[str, str]:
    """The engines of all plug-ins, as their hooks return them; those of allranks come first."""
    found = {"auto": "allranks"}
    added: dict[str, str] = {}
    for plugin, engines in _results(dict, "allranks_engines"):
        for name, place in engines.items():
            _refuse_second("engine", name, plugin, found)
            added[name] = place
    return added


def _refuse_second(kind: str, name: str, plugin: str, found: dict[str, str]) -> None:
    """Refuse a second command, section or engine of a name, and note the plug-in that adds it."""
    if name in found:
        msg = f"The plug-in {plugin} adds the {kind} {name}, which is already there."
        raise PluginError(msg, why=f"It is of {found[name]}.", remedy="Remove the package that adds it.")
    found[name] = "allranks" if plugin == "allranks" else f"the plug-in {plugin}"
