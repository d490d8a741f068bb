"""``allranks history``, ``compare`` and ``show``: read the reports and the history of earlier runs."""

from collections.abc import Sequence

from allranks.plugin_manager import CAN_FAIL, Command, implements


@implements
def allranks_commands() -> Sequence[Command]:
    """Add the three commands."""
    from allranks.plugins.history import command, compare, show  # noqa: PLC0415 - only for a command line

    return (
        Command("history", command.add, CAN_FAIL, "show what became of a test over runs and cells"),
        Command("compare", compare.add, CAN_FAIL, "show what differs between two runs, torch versions or cells"),
        Command("show", show.add, CAN_FAIL, "show the tests of a JUnit report, of allranks or of another writer"),
    )
