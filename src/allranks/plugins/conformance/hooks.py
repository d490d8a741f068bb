"""The command ``allranks conformance``, and its section of reports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allranks.plugin_manager import JUDGES, Command, implements

if TYPE_CHECKING:
    from allranks.report.section import SectionMaker


@implements
def allranks_commands() -> Sequence[Command]:
    """Add ``conformance``."""
    module = "allranks.plugins.conformance.command"
    return (Command("conformance", module, JUDGES, "show what a backend can do, and what it does wrong"),)


@implements
def allranks_sections() -> "Sequence[SectionMaker]":
    """Add the capability tables to every report: any test can have the marker ``conformance``."""
    from allranks.plugins.conformance.capability_tables import CapabilitySection  # noqa: PLC0415 - only for a report

    return (CapabilitySection(),)
