"""Where jobs run: the contract of engines, and allranks' own, which register as those of plug-ins do."""

from collections.abc import Mapping
from typing import Final

from allranks.plugin_manager import implements

AUTO: Final = "auto"
"""The name for the first engine of this host that is there: see :mod:`allranks.engines.registry`."""


@implements
def allranks_engines() -> Mapping[str, str]:
    """See :meth:`allranks.plugin_manager.Hooks.allranks_engines`."""
    return {
        "docker": "allranks.engines.docker:DockerEngine",
        "process": "allranks.engines.process:ProcessEngine",
    }
