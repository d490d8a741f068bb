"""Marks that classes and decorators of ours put on tests by themselves."""

import pytest


def plain_mark(name: str, *args: str) -> pytest.MarkDecorator:
    """A mark that needs no registration.

    ``pytest.mark.NAME`` is an error under ``--strict-markers`` where the plugin that registers NAME is not there; and
    what a suite author did not write must not be an error of the suite.

    Args:
        name: The mark.
        args: Its arguments.
    """
    return pytest.MarkDecorator(pytest.Mark(name, args, {}, _ispytest=True), _ispytest=True)
