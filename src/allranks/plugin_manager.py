"""Plug-ins, and the hooks by which they extend allranks.

A plug-in is a module with functions named like the methods of :class:`Hooks`, each marked with :data:`implements`.
allranks' own are below :mod:`allranks.plugins`; a missing one is left out. Other packages add theirs by the entry point
``allranks.plugins``. pluggy, pytest's library for hooks, calls them.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, cast

import pluggy

from allranks.errors import ExitCode, PluginError

OWN: Final = ("stress", "history", "conformance")
"""The names of allranks' own plug-ins."""

GROUP: Final = "allranks.plugins"
"""The package of allranks' own plug-ins, and the group of the entry points of others."""

CAN_FAIL: Final = frozenset({ExitCode.OK, ExitCode.USAGE, ExitCode.INFRASTRUCTURE, ExitCode.INTERRUPTED})
"""The exit codes of a command that runs no tests."""

JUDGES: Final = frozenset(ExitCode)
"""The exit codes of a command that judges tests."""

implements = pluggy.HookimplMarker("allranks")
"""Marks a plug-in's implementation of a hook."""

_hook = pluggy.HookspecMarker("allranks")


class Command(NamedTuple):
    """A command of ``allranks``."""

    name: str
    declare: Callable[[Any], None]  # declares the arguments of its CommandParser, and the function `command` for them
    codes: Iterable[ExitCode]  # those that its help lists
    meaning: str  # what it does, for the list of commands


class Hooks:
    """What a plug-in can implement."""

    @_hook
    def allranks_commands(self) -> Sequence[Command]:
        """Commands to add to ``allranks``; a name that is already there is refused."""
        raise NotImplementedError


def load_plugins() -> pluggy.PluginManager:
    """Import all plug-ins.

    Raises:
        PluginError: One of another package cannot be imported.
    """
    manager = pluggy.PluginManager("allranks")
    manager.add_hookspecs(Hooks)
    for name in OWN if find_spec(GROUP) else ():
        if find_spec(f"{GROUP}.{name}"):
            manager.register(importlib.import_module(f"{GROUP}.{name}"), name)
    for point in entry_points(group=GROUP):
        try:
            manager.register(point.load(), point.name)
        except (Exception, SystemExit) as error:
            msg = f"The plug-in {point.name} cannot be loaded ({point.value})."
            why = f"{type(error).__name__}: {error}"
            raise PluginError(msg, why=why, remedy="Repair or remove the package that adds it.") from error
    return manager


def added_commands(own: Iterable[Command]) -> list[Command]:
    """The commands of all plug-ins, in the order of their registration.

    Args:
        own: The commands of the core.

    Raises:
        PluginError: A plug-in cannot be loaded, or adds a command that is already there.
    """
    manager = load_plugins()
    found = {command.name: "allranks" for command in own}
    added: list[Command] = []
    for hook in manager.hook.allranks_commands.get_hookimpls():
        for command in cast("Sequence[Command]", hook.function()):
            if command.name in found:
                msg = f"The plug-in {hook.plugin_name} adds the command {command.name}, which is already there."
                why = f"It is a command of {found[command.name]}."
                raise PluginError(msg, why=why, remedy="Remove one of the two packages.")
            found[command.name] = f"the plug-in {hook.plugin_name}"
            added.append(command)
    return added
