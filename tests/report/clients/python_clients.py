"""Clients in Python: `python_clients.py CLIENT FILE ...`, run by the interpreter that has them.

Prints how many testcases there are of each outcome, as JSON, in the client's own words.
"""

import json
import sys
from collections import Counter
from pathlib import Path


def codecov(file: Path) -> Counter[str]:
    from test_results_parser import parse_junit_xml

    return Counter(str(run.outcome).rpartition(".")[2] for run in parse_junit_xml(file.read_bytes()).testruns)


def junit2html(file: Path) -> Counter[str]:
    from junit2htmlreport.parser import Junit

    report = Junit(filename=str(file))
    assert report.html()
    return Counter(case.outcome() for suite in report for case in suite.all())


def junitparser(file: Path) -> Counter[str]:
    import junitparser

    report = junitparser.JUnitXml.fromfile(str(file))
    report.update_statistics()
    bad = {"failure": report.failures, "error": report.errors, "skipped": report.skipped}
    return Counter(passed=report.tests - sum(bad.values()), **bad)


if __name__ == "__main__":
    client = {"codecov": codecov, "junit2html": junit2html, "junitparser": junitparser}[sys.argv[1]]
    print(json.dumps(sum(map(client, map(Path, sys.argv[2:])), Counter())))
