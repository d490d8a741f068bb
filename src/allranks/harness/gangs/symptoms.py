"""Tells what went wrong on a rank by itself from what went wrong there only because a peer did not come.

One rank dies, and its peers' collectives fail a moment later: those failures are symptoms. A symptom does not
lead a verdict where the peer's own trouble is known.
"""

import re
from pathlib import PurePath

from torch import distributed

SYMPTOM_ATTRIBUTE = "allranks_symptom"
"""An exception with a true attribute of this name says itself that it waited for a peer in vain."""

# What gloo, NCCL, the stores and TensorPipe say of a peer that is late or gone (torch 2.13).
_PEER = re.compile(
    r"timed?[ -]?out|wait timeout|closed by peer|reset by peer|connection (was )?(closed|reset|refused)|broken pipe"
    r"|remote process (exited|has exited)|socket (was )?closed|failed to recv|eof: end of file",
    re.IGNORECASE,
)
_NAMES_ITSELF = re.compile(r"gloo|Timeout waiting for key")
"""In the words of a plain RuntimeError: gloo, and the file store."""


def is_symptom(error: BaseException | None) -> bool:
    """Whether an exception says no more than that a peer was late or gone."""
    if error is None:
        return False
    if getattr(error, SYMPTOM_ATTRIBUTE, False):
        return True
    return isinstance(error, RuntimeError) and _PEER.search(str(error)) is not None and _is_of_distributed(error)


def _is_of_distributed(error: RuntimeError) -> bool:
    """Whether torch.distributed raised it: by its type, by its words, or by the innermost frame."""
    if isinstance(error, distributed.DistError) or _NAMES_ITSELF.search(str(error)):
        return True
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and "distributed" in PurePath(traceback.tb_frame.f_code.co_filename).parts
