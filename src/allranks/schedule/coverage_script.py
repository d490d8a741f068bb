"""Combines coverage data and writes reports, in an interpreter that has coverage.py.

What is wanted comes on standard input, in JSON: see :mod:`allranks.schedule.combined_coverage`. It prints the table.
"""

import importlib
import json
import sys


def main() -> None:
    """Combine and report."""
    # The folder of this file, which has modules of other names and of this one.
    del sys.path[0]
    wanted = json.load(sys.stdin)
    # Whoever checks the types of this file need not have it.
    coverage = importlib.import_module("coverage")
    measured = coverage.Coverage(data_file=wanted["data"], config_file=wanted["config"])
    measured.set_option("paths", {**(measured.get_option("paths") or {}), **wanted["paths"]})
    measured.combine(wanted["files"], strict=True, keep=True)
    measured.save()
    for name, target in wanted["reports"]:
        write = getattr(measured, f"{name}_report")
        write(ignore_errors=True, **{"directory" if name == "html" else "outfile": target})
    missing, skip = wanted["show_missing"], wanted["skip_covered"]
    measured.report(ignore_errors=True, show_missing=missing, skip_covered=skip)


if __name__ == "__main__":
    main()
