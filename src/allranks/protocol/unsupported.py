"""Recognizes errors of a backend that lacks an operation, and the skips that they cause.

The ranks of a job and the report both use this module.
"""

import re
from typing import Final

_UNSUPPORTED: Final = re.compile(
    r"no backend type associated with device type"  # a Python backend without the method (torch 2.13)
    r"|does(?: not|n't) support|(?:is|are) not supported|\bunsupported\b(?! operand)|(?:not(?: yet)?|only) implemented",
    re.IGNORECASE,
)

_ERROR_TYPES: Final = (RuntimeError, ValueError)
"""The types of torch's own errors, as opposed to a failed assertion or a TypeError in the code of the backend."""


def says_unsupported(error: BaseException) -> bool:
    """Whether an exception only says that the backend lacks an operation."""
    return isinstance(error, NotImplementedError) or (
        isinstance(error, _ERROR_TYPES) and _UNSUPPORTED.search(str(error)) is not None
    )


def lack(backend: str, what: str) -> str:
    """The reason of a skip because the backend lacks something."""
    return f"{backend} has no {what}"


def is_lack(backend: str, reason: str) -> bool:
    """Whether :func:`lack` made the reason of a skip."""
    return reason.startswith(lack(backend, ""))
