"""The CI service that runs this process as a step of a workflow, if a plug-in knows it."""

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
    """What a service shows of a step, and what it obeys in the step's log."""

    def console(self, say: "Callable[[str], None]", detail: "Detail") -> "AbstractContextManager[Console]":
        """The console of a run.

        Args:
            say: Prints one line to standard output.
            detail: How much is printed.
        """

    def untrusted_output(self, say: Callable[[str], None]) -> AbstractContextManager[object]:
        """Obey nothing that is printed in the meantime, such as the output of a build.

        Args:
            say: Prints one line to the same stream.
        """

    def show_error(self, error: AllranksError, command: str, stream: TextIO) -> AbstractContextManager[object]:
        """Show the error that ends a command, which is printed in the meantime.

        Args:
            error: The error.
            command: The command's name.
            stream: Where the error is printed.
        """

    def report_cause(self, text: str) -> None:
        """Pass on, in a sentence, why the results of a run are bad."""


def ci_service(environ: Mapping[str, str] = os.environ) -> CiService | None:
    """The service that runs this process; None if no plug-in knows one.

    Raises:
        PluginError: A plug-in fails.
    """
    try:
        plugins = load_plugins()
    except PluginError:  # it is what the service has to show
        plugins = own_plugins()
    return cast("CiService | None", first_result(plugins, "allranks_ci_service", environ=environ))


def service_for_errors(environ: Mapping[str, str] = os.environ) -> CiService | None:
    """The service that shows an error; one that allranks itself knows if a plug-in of another package fails."""
    try:
        return ci_service(environ)
    except AllranksError:
        return cast("CiService | None", first_result(own_plugins(), "allranks_ci_service", environ=environ))


def untrusted_output(say: Callable[[str], None]) -> AbstractContextManager[object]:
    """See :meth:`CiService.untrusted_output`; without a service, nothing."""
    service = ci_service()
    return service.untrusted_output(say) if service else nullcontext()
