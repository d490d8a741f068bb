"""Loads plug-ins, and declares the hooks that extend allranks.

A plug-in is a module with functions named like the methods of :class:`Hooks`, which are marked with :data:`implements`.
The engines of the core (:mod:`allranks.engines.hooks`) are registered first, then allranks' own plug-ins
(``allranks.plugins.NAME.hooks``), if they are installed, then those of other packages (entry point
``allranks.plugins``). Plug-ins inside jobs work without pluggy; see :mod:`allranks.agent.job_plugins`.
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

from allranks.errors import MEANING, AllranksError, ExitCode, PluginError, as_error, described, shown

if TYPE_CHECKING:
    from allranks.matrix.expand import Expansion
    from allranks.matrix.model import Matrix
    from allranks.report.section import SectionMaker

OWN: Final = ("slurm", "stress", "history", "conformance", "github")
"""The names of allranks' own plug-ins."""

GROUP: Final = "allranks.plugins"
"""The package of allranks' own plug-ins, and the entry point group of others."""

CAN_FAIL: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "done without problems",
    **{code: MEANING[code] for code in (ExitCode.USAGE, ExitCode.INFRASTRUCTURE, ExitCode.INTERRUPTED)},
}
"""The exit codes of a command that runs no tests."""

JUDGES: Final = MEANING
"""The exit codes of a command that reports test results."""

_REPAIR: Final = "Repair or remove the package that adds it."

_SECTION_NAME: Final = re.compile(r"[a-z][a-z0-9_]*", re.ASCII).fullmatch

implements = pluggy.HookimplMarker("allranks")
"""Marks a plug-in's implementation of a hook."""

_hook = pluggy.HookspecMarker("allranks")


class Command(NamedTuple):
    """A command of ``allranks``."""

    name: str
    # Imported on first use. It has `Options`, a subclass of CommandOptions of :mod:`allranks.cli.parser`, and a
    # function `run` that takes such options and returns an exit code.
    module: str
    codes: Mapping[ExitCode, str]  # the exit codes in its help, with their meaning
    meaning: str  # its description in the list of commands


class Hooks:
    """The hooks of a plug-in. An implementation may leave out parameters that it does not need."""

    @_hook
    def allranks_commands(self) -> Sequence[Command]:
        """Commands to add to ``allranks``. An existing name is an error."""
        raise NotImplementedError

    @_hook
    def allranks_options(self, command: str) -> type | None:
        """A dataclass of options to add to a command; None for other commands.

        Its fields are created by :func:`allranks.cli.parser.option`. An existing option is an error. The instance with
        the given values is ``options.added[Class]``.

        Args:
            command: ``run``, ``report``, or the command of a plug-in that runs tests.
        """
        raise NotImplementedError

    @_hook
    def allranks_sections(self, options: Any, matrix: "Matrix | None") -> "Sequence[SectionMaker]":  # noqa: ANN401
        """Sections to add to the report of a command.

        Args:
            options: The options of the command, of its own dataclass.
            matrix: The matrix of the run; None if the command reports existing results.
        """
        raise NotImplementedError

    @_hook
    def allranks_engines(self) -> Mapping[str, str]:
        """Engines to add: the names, and the classes as ``package.module:Class``, which are imported on first use.

        The classes are subclasses of :class:`allranks.engines.base.Engine`. An existing name is an error.
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
        """Execute a run instead of the core, if an option of the plug-in requests that; otherwise return None.

        Args:
            expansion: The matrix and its cells.
            results: The folder of all runs.
            options: The options of ``allranks run``, of its dataclass.
            run_here: Executes the run in this process, on the given :class:`~allranks.engines.base.Engine`; None means
                the engine of the options.
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
    """The engines of the core, and the installed plug-ins of allranks itself."""
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
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

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
                msg = f"The plug-in {name} adds an invalid command."
                raise PluginError(
                    msg,
                    why=f"Its hook allranks_commands returned {shown(command)}, which is not a Command.",
                    remedy=_REPAIR,
                )
            _check_unique("command", command.name, name, found)
            added.append(command)
    return added


def added_options(command: str) -> list[type]:
    """The dataclasses of options that plug-ins add to a command."""
    added: list[type] = []
    for name, options in _results(_unchanged, "allranks_options", command=command):
        if options is None:
            continue
        if not (isinstance(options, type) and is_dataclass(options)):
            msg = f"The plug-in {name} adds options that are not a dataclass."
            raise PluginError(msg, why=f"Its hook allranks_options returned {shown(options)}.", remedy=_REPAIR)
        added.append(options)
    return added


def run_by_plugins(
    run_here: Callable[[Any], ExitCode],
    **given: Any,  # noqa: ANN401 - see Hooks.allranks_run
) -> ExitCode | None:
    """Let a plug-in execute a run; see :meth:`Hooks.allranks_run`."""

    def run(engine: Any) -> ExitCode:  # noqa: ANN401
        try:
            return run_here(engine)
        except AllranksError:
            raise
        except Exception as error:
            raise as_error(error) from error  # otherwise, `_call` would blame the plug-in

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
                msg = f"The plug-in {plugin} adds a section without a valid name."
                why = "It must be a SectionMaker with a name of lower-case letters, digits and '_'."
                raise PluginError(msg, why=why, remedy=_REPAIR)
            _check_unique("section", name, plugin, found)
            added.append(maker)
    return added


def _results(convert: Callable[[Any], Any], hook: str, **arguments: object) -> Iterator[tuple[str, Any]]:
    """Call the implementations of a hook, in the order of registration; yield the plug-ins' names and the results."""
    for implementation in getattr(load_plugins().hook, hook).get_hookimpls():
        yield implementation.plugin_name, _call(hook, implementation, convert, arguments)


def first_result(plugins: pluggy.PluginManager, hook: str, **arguments: object) -> object:
    """The first result of a hook that is not None; plug-ins that were registered last are called first."""
    for implementation in reversed(getattr(plugins.hook, hook).get_hookimpls()):
        if (found := _call(hook, implementation, _unchanged, arguments)) is not None:
            return found
    return None


def _unchanged(result: object) -> object:
    return result


def _call(  # a hook may return any type
    hook: str, implementation: pluggy.HookImpl, convert: Callable[[Any], Any], arguments: Mapping[str, object]
) -> Any:  # noqa: ANN401
    name = implementation.plugin_name
    try:
        return convert(implementation.function(*(arguments[argument] for argument in implementation.argnames)))
    except AllranksError:
        raise
    except (Exception, SystemExit) as error:
        if name in {"allranks", *OWN}:
            raise
        msg = f"The plug-in {name} failed in its hook {hook}."
        raise PluginError(msg, why=f"{described(error)}.", remedy=_REPAIR) from error


def added_engines() -> Mapping[str, str]:
    """The import paths of all engines, by name; those of allranks come first."""
    found = {"auto": "allranks"}
    added: dict[str, str] = {}
    for plugin, engines in _results(dict, "allranks_engines"):
        for name, path in engines.items():
            _check_unique("engine", name, plugin, found)
            added[name] = path
    return added


def _check_unique(kind: str, name: str, plugin: str, found: dict[str, str]) -> None:
    """Reject a second command, section or engine with the same name, and record who adds it."""
    if name in found:
        msg = f"The plug-in {plugin} adds the {kind} {name}, which already exists."
        raise PluginError(msg, why=f"It belongs to {found[name]}.", remedy="Remove the package that adds it.")
    found[name] = "allranks" if plugin == "allranks" else f"the plug-in {plugin}"
