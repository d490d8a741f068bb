"""The entry point of ``python -m allranks`` and the command ``allranks``, which handles Ctrl-C even during imports."""

import io
import os
import sys
from contextlib import suppress
from typing import Any

from allranks.interruption import interruptible


def main() -> int:
    """Run the command line of this process, and return its exit code."""
    _protect_streams()
    try:
        with interruptible(to_the_end=True):
            from allranks.cli import main as cli  # noqa: PLC0415 - not before interrupts are handled

            return cli.main()
    except KeyboardInterrupt:
        print("\nallranks: interrupted", file=sys.stderr)
        return 130


class _Lossy(io.FileIO):
    """A stream that ignores failed writes, as to a full disk: results do not depend on console output."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - any bytes-like object
        """Write, and ignore errors."""
        with suppress(OSError):
            return super().write(data)
        return len(data)


def _protect_streams() -> None:
    """Ignore failed writes to standard streams, and open /dev/null for closed ones, before a file gets their number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
        stream = getattr(sys, name)
        if name != "stdin" and (stream is None or stream is getattr(sys, f"__{name}__")):
            setattr(sys, name, _lossy(descriptor, stream))


def _lossy(descriptor: int, stream: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """A copy of a stream that ignores failed writes."""
    raw = _Lossy(descriptor, "w", closefd=False)
    if stream is None or not isinstance(stream.buffer, io.BufferedWriter):  # closed, or not buffered (python -u)
        return io.TextIOWrapper(raw, errors="backslashreplace", write_through=True)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, errors="backslashreplace", line_buffering=stream.line_buffering
    )


if __name__ == "__main__":
    sys.exit(main())
