"""GitHub Actions: what a step of a workflow shows of a run, and what it obeys in the log."""

from collections.abc import Mapping

from allranks.plugin_manager import implements
from allranks.plugins.github.workflow_commands import is_on_actions


@implements
def allranks_ci_service(environ: Mapping[str, str]) -> object:
    """See :meth:`allranks.plugin_manager.Hooks.allranks_ci_service`."""
    if not is_on_actions(environ):
        return None
    from allranks.plugins.github.console import Actions  # noqa: PLC0415 - few commands run in a workflow

    return Actions()
