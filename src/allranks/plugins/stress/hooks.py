"""``allranks stress`` and ``allranks bisect``: repeat tests, and find what makes them fail."""

from collections.abc import Sequence

from allranks.plugin_manager import JUDGES, Command, implements


@implements
def allranks_commands() -> Sequence[Command]:
    """Add the two commands."""
    from allranks.plugins.stress import bisect, command  # noqa: PLC0415 - only for a command line

    return (
        Command("stress", command.add, JUDGES, "repeat tests until they fail, or so often that they seldom do"),
        Command(
            "bisect", bisect.add, (), "find the axis of the matrix, or the commit, that decides whether a test fails"
        ),
    )
