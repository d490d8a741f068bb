"""Programs that stand in for commands."""

import shlex
import sys
from pathlib import Path

_START = """\
#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
"""
"""The shell starts Python, which reads these lines as a string. A line ``#!python`` allows no space in the path."""


def write_python_program(path: Path, text: str) -> None:
    """Write a program that this Python runs when its path is executed."""
    path.write_text(_START.format(python=shlex.quote(sys.executable)) + text)
    path.chmod(0o755)
