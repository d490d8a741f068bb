"""The engines of the core, which register as those of plug-ins do."""

from collections.abc import Mapping

from allranks.plugin_manager import implements


@implements
def allranks_engines() -> Mapping[str, str]:
    """Where the classes of the core's engines are, by name."""
    return {
        "docker": "allranks.engines.docker:DockerEngine",
        "process": "allranks.engines.process:ProcessEngine",
    }
