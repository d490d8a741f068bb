"""Small texts that rank 0 puts up in a shared folder for its peers to read."""

from pathlib import Path

from allranks.testing.barrier import DEFAULT_TIMEOUT, PeerTimeoutError
from allranks.testing.waiting import wait_until


def put_up(notice: Path, text: str) -> None:
    """Put a notice up: whoever sees the file sees all of the text."""
    draft = notice.with_name(f"{notice.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.rename(notice)


def read_when_up(notice: Path, what: str, timeout: float = DEFAULT_TIMEOUT) -> str:
    """The text of a notice, as soon as it is there.

    Args:
        notice: The file.
        what: What it tells, for the error.
        timeout: Seconds.

    Raises:
        PeerTimeoutError: It was not put up in time.
    """
    if not wait_until(notice.exists, timeout):
        msg = f"rank 0 did not tell {what} within {timeout:g} s"
        raise PeerTimeoutError(msg)
    return notice.read_text(encoding="utf-8")
