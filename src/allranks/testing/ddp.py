"""What DistributedDataParallel has written down about itself."""

from collections.abc import Mapping
from typing import cast

from torch.nn.parallel import DistributedDataParallel

_BEFORE_CPP_STACK = "\nException raised from "


def verify_ddp_error_logged(model: DistributedDataParallel, expected: str) -> None:
    """Check that DDP's log has an error with some words in it.

    Args:
        model: The model whose backward or forward pass went wrong.
        expected: Words of the error, or the text of the exception itself: a C++ stack at its end is not compared.

    Raises:
        AssertionError: DDP has logged no error, or another one.
    """
    logged = _logging_data(model)
    lacking = [name for name in ("iteration", "has_error", "error") if name not in logged]
    if lacking:
        msg = f"DDP has logged no error: its log lacks {', '.join(lacking)}"
        raise AssertionError(msg)
    words = expected.split(_BEFORE_CPP_STACK, maxsplit=1)[0]
    if words not in str(logged["error"]):
        msg = f"DDP has logged another error.\nexpected: {words}\nlogged:   {logged['error']}"
        raise AssertionError(msg)


def _logging_data(model: DistributedDataParallel) -> Mapping[str, object]:
    # DDP has no public way to its log; this method has been there since torch 1.8.
    read = getattr(model, "_get_ddp_logging_data", None)
    if read is None:
        msg = "this torch's DistributedDataParallel keeps no log that can be read: _get_ddp_logging_data is gone"
        raise RuntimeError(msg)
    return cast("Mapping[str, object]", read())
