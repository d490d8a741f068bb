"""Handlers of ``logging`` that modules of a suite make when they are imported."""

import logging
from collections.abc import Iterator, Sequence
from typing import TextIO


def redirect_handlers(captured: Sequence[TextIO], real: Sequence[TextIO]) -> None:
    """Have the handlers that print to pytest's capture print to the process's own streams.

    A handler keeps the stream that it was made with. Made at import, it has one that is closed when the capture ends,
    and each line that it logs would be a traceback.

    Args:
        captured: The streams that were there during collection.
        real: What is to take the place of each.
    """
    for handler in _stream_handlers():
        for before, after in zip(captured, real, strict=True):
            if handler.stream is before and before is not after:
                handler.stream = after  # not setStream, which flushes the closed one


def _stream_handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    named = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (logging.getLogger(), *named):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                yield handler
