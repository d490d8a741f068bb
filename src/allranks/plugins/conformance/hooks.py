"""``allranks conformance``: shows what a backend can do, and what it does wrong."""

from collections.abc import Sequence

from allranks.plugin_manager import JUDGES, Command, implements


@implements
def allranks_commands() -> Sequence[Command]:
    """Add the command."""
    from allranks.plugins.conformance import command  # noqa: PLC0415 - only for a command line

    return (Command("conformance", command.add, JUDGES, "show what a backend can do, and what it does wrong"),)
