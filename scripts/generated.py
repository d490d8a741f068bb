"""Writes or checks a generated file, for the scripts that make one."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(path: Path, text: str, *, then: str = "") -> int:
    """Write a file, or with ``--check`` compare it; returns the exit code. `then` is what to do after writing it."""
    if "--check" not in sys.argv:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        print(f"{path.relative_to(ROOT)} is out of date: run scripts/{Path(sys.argv[0]).name}{then}")
        return 1
    return 0
