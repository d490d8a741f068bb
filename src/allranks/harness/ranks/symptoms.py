"""Tells what went wrong on a rank by itself from what went wrong there only because a peer did not come.

One rank dies, and its peers' collectives fail a moment later: those failures are symptoms. A symptom does not
lead a verdict where the peer's own trouble is known.
"""

import dis
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

import torch

from allranks.harness.ranks import call_counter

SYMPTOM_ATTRIBUTE = "allranks_symptom"
"""An exception with a true attribute of this name says itself that it waited for a peer in vain."""

_MOST: Final = 100
"""Exceptions of one chain that are looked at: a chain may be a circle."""

_DISTRIBUTED: Final = (str(Path(torch.__file__).parent / "distributed") + "/", call_counter.__file__)
"""Where calls of torch.distributed are, as source files see them: a C++ function has the frame of what called it."""


def is_symptom(error: BaseException | None) -> bool:
    """Whether an exception says no more than that a peer was late or gone.

    So does one that was raised because of such a one, or while it was handled; of a group all have to.
    """
    try:
        return any(map(_is_one, _chain(error)))
    except Exception:  # noqa: BLE001 - exceptions of a suite's own, whose methods may raise anything
        return False


def _is_one(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup) and all(map(is_symptom, error.exceptions)):
        return True
    return getattr(error, SYMPTOM_ATTRIBUTE, False) is True or _is_of_distributed(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _is_of_distributed(error: BaseException) -> bool:
    """Whether torch.distributed raised it, and says that of a peer; anybody can raise the same type and words."""
    if not call_counter.speaks_of_a_peer(error):
        return False
    traceback = _innermost(error.__traceback__)
    if traceback is None:
        return False
    code = traceback.tb_frame.f_code
    if code.co_filename.startswith(_DISTRIBUTED):
        return True
    was_raised_here = dis.opname[code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"
    return isinstance(error, RuntimeError) and not was_raised_here


def _innermost(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback
