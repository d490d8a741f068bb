"""Fake commands."""

import shlex
import sys
from pathlib import Path

_START = """\
#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
"""
"""A shell script that starts Python, which reads it as a string, since ``#!python`` allows no space in the path."""


def write_python_program(path: Path, text: str) -> None:
    """Write an executable Python program."""
    path.write_text(_START.format(python=shlex.quote(sys.executable)) + text)
    path.chmod(0o755)
