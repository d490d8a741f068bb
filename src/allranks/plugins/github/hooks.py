"""Selects GitHub Actions as the CI service in a step of a workflow."""

from collections.abc import Mapping

from allranks.plugin_manager import implements
from allranks.plugins.github.workflow_commands import is_on_actions


@implements
def allranks_ci_service(environ: Mapping[str, str]) -> object:
    """Use GitHub Actions if the environment is that of a workflow's step."""
    if not is_on_actions(environ):
        return None
    from allranks.plugins.github.console import Actions  # noqa: PLC0415 - few commands run in a workflow

    return Actions()
