"""Combines coverage data and writes reports, in an interpreter that has coverage.py.

It reads the request from standard input, in JSON (:mod:`allranks.runner.combined_coverage`), and prints the table.
"""

import importlib
import json
import sys


def main() -> None:
    """Combine and report."""
    # The folder of this file, whose modules are not to be imported by their bare names.
    del sys.path[0]
    wanted = json.load(sys.stdin)
    # Imported by name: type checkers of this file need not have coverage.
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
