"""pytest's terminal in a rank: nobody watches its progress, and plugins still find it to write on."""

import sys
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

_NAME = "terminalreporter"


class SilentReporter:
    """Stands for the terminal reporter, and has no hooks: pytest tells it nothing.

    Args:
        reporter: The real one, which plugins such as pytest-timeout look up by name to write on.
    """

    def __init__(self, reporter: TerminalReporter) -> None:
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real one has
        """What the real one has under this name."""
        return getattr(self._reporter, name)


def silence_terminal(config: pytest.Config) -> None:
    """Stop the report of progress; what plugins write on the terminal goes to standard error."""
    reporter = config.pluginmanager.unregister(name=_NAME)
    if isinstance(reporter, TerminalReporter):
        reporter._tw._file = sys.stderr  # noqa: SLF001 - a terminal writer cannot be redirected otherwise
        config.pluginmanager.register(SilentReporter(reporter), _NAME)
