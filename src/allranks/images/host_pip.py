"""Runs the host's pip."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from allranks.images.child_process import child, lines_of
from allranks.images.pip_settings import without_logins
from allranks.protocol.xml_text import clipped

_KEPT_LINES = 15
_SHOWN = ("Downloading ", "Processing ", "Building wheel for ", "Installing collected ")


def run_to_end(
    command: Sequence[str],
    progress: Callable[[str], None],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Run a command of pip, and report what it downloads and builds; return why it failed, or an empty string."""
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    with child(command, environ=environ, folder=folder) as process:
        for line in map(without_logins, lines_of(process)):
            last.append(line)
            if (shown := line.strip()).startswith(_SHOWN):
                progress(clipped(shown, 100))
    return cause(last) if process.returncode else ""


def cause(lines: Iterable[str]) -> str:
    """The errors in pip's output, each with the indented lines after it; if there are none, the whole output."""
    kept = [line for line in lines if line.strip()]
    errors: list[str] = []
    is_error = False
    for line in kept:
        is_error = line.startswith("ERROR") or (is_error and line.startswith(" "))
        errors += [line.strip().removeprefix("ERROR: ")] if is_error else []
    return "\n".join(errors or kept) or "It printed nothing."
