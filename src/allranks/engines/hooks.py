"""Registers the engines of the core, as a plug-in registers its own."""

from collections.abc import Mapping

from allranks.plugin_manager import implements


@implements
def allranks_engines() -> Mapping[str, str]:
    """Return the import path of each engine, by name."""
    return {
        "docker": "allranks.engines.docker:DockerEngine",
        "process": "allranks.engines.process:ProcessEngine",
    }
