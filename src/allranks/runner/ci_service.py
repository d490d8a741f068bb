"""The CI service that runs this process as a step of a workflow, if a plug-in supports it."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from allranks.errors import AllranksError, PluginError
from allranks.plugin_manager import first_result, load_plugins, own_plugins

if TYPE_CHECKING:
    from allranks.runner.console import Console
    from allranks.runner.listener import Detail


class CiService(Protocol):
    """How a CI service shows a step, and the commands that it reads from the step's log."""

    def console(self, say: "Callable[[str], None]", detail: "Detail") -> "AbstractContextManager[Console]":
        """The console of a run.

        Args:
            say: Prints one line to standard output.
            detail: How much is printed.
        """

    def untrusted_output(self, say: Callable[[str], None]) -> AbstractContextManager[object]:
        """Make the service ignore commands in the output of this context, such as that of a build.

        Args:
            say: Prints one line to the same stream.
        """

    def show_error(self, error: AllranksError, command: str, stream: TextIO) -> AbstractContextManager[object]:
        """Show the error that ends a command, and whose text is printed in this context.

        Args:
            error: The error.
            command: The command's name.
            stream: Where the error is printed.
        """

    def report_cause(self, text: str) -> None:
        """Report in a sentence why a run failed."""


def ci_service(environ: Mapping[str, str] = os.environ) -> CiService | None:
    """The service that runs this process; None if no plug-in supports it.

    Raises:
        PluginError: A plug-in fails.
    """
    try:
        plugins = load_plugins()
    except PluginError:  # the service has to show this error
        plugins = own_plugins()
    return cast("CiService | None", first_result(plugins, "allranks_ci_service", environ=environ))


def service_for_errors(environ: Mapping[str, str] = os.environ) -> CiService | None:
    """The service that shows an error; only allranks' own plug-ins are used if another one fails."""
    try:
        return ci_service(environ)
    except AllranksError:
        return cast("CiService | None", first_result(own_plugins(), "allranks_ci_service", environ=environ))


def untrusted_output(say: Callable[[str], None]) -> AbstractContextManager[object]:
    """The context of :meth:`CiService.untrusted_output`, if there is a service."""
    service = ci_service()
    return service.untrusted_output(say) if service else nullcontext()
