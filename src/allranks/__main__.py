"""``python -m allranks`` and the command ``allranks``: Ctrl-C may come even while they import."""

import io
import os
import sys
from contextlib import suppress
from typing import Any

from allranks.interruption import interruptible


def main() -> int:
    """Run the command that this process's arguments name, and return its exit code."""
    _settle_output()
    try:
        with interruptible(to_the_end=True):
            from allranks.cli import main as cli  # noqa: PLC0415 - not before interrupts are handled

            return cli.main()
    except KeyboardInterrupt:
        print("\nallranks: interrupted", file=sys.stderr)
        return 130


class _Lossy(io.FileIO):
    """A stream that drops what it cannot write: its disk may be full, and results do not depend on console output."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - any bytes-like object
        """Write, and report success even if the write failed."""
        with suppress(OSError):
            return super().write(data)
        return len(data)


def _settle_output() -> None:
    """Keep standard streams from ending a command; open /dev/null for closed ones before a file takes their number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != descriptor:
                os.dup2(nothing, descriptor)
                os.close(nothing)
        stream = getattr(sys, name)
        if name != "stdin" and (stream is None or stream is getattr(sys, f"__{name}__")):
            setattr(sys, name, _lossy(descriptor, stream))


def _lossy(descriptor: int, stream: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """A copy of a stream that drops what it cannot write."""
    raw = _Lossy(descriptor, "w", closefd=False)
    if stream is None or not isinstance(stream.buffer, io.BufferedWriter):  # with python -u, too
        return io.TextIOWrapper(raw, errors="backslashreplace", write_through=True)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, errors="backslashreplace", line_buffering=stream.line_buffering
    )


if __name__ == "__main__":
    sys.exit(main())
