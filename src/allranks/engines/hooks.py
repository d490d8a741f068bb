"""The engines of the core, which register as those of plug-ins do."""

from collections.abc import Mapping

from allranks.plugin_manager import implements


@implements
def allranks_engines() -> Mapping[str, str]:
    """See :meth:`allranks.plugin_manager.Hooks.allranks_engines`."""
    return {
        "docker": "allranks.engines.docker:DockerEngine",
        "process": "allranks.engines.process:ProcessEngine",
    }
