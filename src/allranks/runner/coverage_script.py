"""Combines coverage data and writes reports, in an interpreter that has coverage.py.

It reads a request of :mod:`allranks.runner.combined_coverage` from standard input, as JSON, and prints the table.
"""

import importlib
import json
import sys


def main() -> None:
    """Combine the data and write the reports."""
    del sys.path[0]  # this file's folder: coverage.py must not import its modules
    request = json.load(sys.stdin)
    # By name: coverage.py may not be installed where this file is type-checked.
    coverage = importlib.import_module("coverage")
    measured = coverage.Coverage(data_file=request["data"], config_file=request["config"])
    measured.set_option("paths", {**(measured.get_option("paths") or {}), **request["paths"]})
    measured.combine(request["files"], strict=True, keep=True)
    measured.save()
    for kind, target in request["reports"]:
        write = getattr(measured, f"{kind}_report")
        write(ignore_errors=True, **{"directory" if kind == "html" else "outfile": target})
    missing, skip = request["show_missing"], request["skip_covered"]
    measured.report(ignore_errors=True, show_missing=missing, skip_covered=skip)


if __name__ == "__main__":
    main()
