"""How a backend refuses an operation that it lacks, and the reason of a skip because of that.

A job's ranks and the report share this module; it needs only the standard library.
"""

import re
from typing import Final

_SAYS: Final = re.compile(
    r"no backend type associated with device type"  # a Python backend without the method (torch 2.13)
    r"|does(?: not|n't) support|(?:is|are) not supported|\bunsupported\b(?! operand)|(?:not(?: yet)?|only) implemented",
    re.IGNORECASE,
)

_REFUSALS: Final = (RuntimeError, ValueError)
"""Types of torch's own refusals: a failed assertion or a TypeError of the backend's own code is none."""


def says_unsupported(error: BaseException) -> bool:
    """Whether an exception only says that the backend lacks what was asked of it."""
    return isinstance(error, NotImplementedError) or (
        isinstance(error, _REFUSALS) and _SAYS.search(str(error)) is not None
    )


def lack(backend: str, what: str) -> str:
    """The reason of a skip because a backend lacks something."""
    return f"{backend} has no {what}"


def is_lack(backend: str, reason: str) -> bool:
    """Whether a skip has such a reason."""
    return reason.startswith(lack(backend, ""))
