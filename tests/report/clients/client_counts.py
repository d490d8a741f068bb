"""Runs clients that we did not write on files of a folder, and says what they count, in the words of JUnit."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Counts = Mapping[str, int]

_WORDS: Final = {
    "pass": "passed", "skip": "skipped", "broken": "error", "failed": "failure", "absent": "skipped",
}  # fmt: skip
_PYTHON: Final = Path(__file__).with_name("python_clients.py")


@dataclass(frozen=True)
class Clients:
    """The folder that scripts/report-clients has filled, and one to work in."""

    folder: Path
    scratch: Path

    def run(self, *arguments: object) -> str:
        """What a client prints."""
        environ = {**os.environ, "DD_API_KEY": "none", "NO_COLOR": "1"}
        said = self.scratch / "output.txt"
        # A file: xunit-viewer ends before a pipe has taken all that it printed.
        with said.open("w") as output:
            done = subprocess.run(
                [str(argument) for argument in arguments],
                stdout=output, stderr=subprocess.STDOUT, timeout=300, check=False, env=environ, cwd=self.scratch,
            )  # fmt: skip
        assert done.returncode == 0, said.read_text()
        return said.read_text()

    def action(self, name: str) -> Path:
        """The folder of an action of GitHub."""
        return self.folder / "actions" / name.replace("/", "+")

    def node(self, name: str, *arguments: object) -> str:
        """What a client from npm prints."""
        return self.run(self.folder / "npm" / "node_modules" / ".bin" / name, *arguments)

    def python(self, name: str, folder: Path) -> Counts:
        """What a client from PyPI counts."""
        files = sorted(folder.glob("*.xml"))
        told = self.run(self.folder / "python" / "bin" / "python", _PYTHON, name, *files)
        return _in_our_words(json.loads(told.splitlines()[-1]))


def codecov(clients: Clients, folder: Path) -> Counts:
    """Codecov's test-results-parser."""
    return clients.python("codecov", folder)


def junit2html(clients: Clients, folder: Path) -> Counts:
    """junit2html; it has no word for an error."""
    return clients.python("junit2html", folder)


def junitparser(clients: Clients, folder: Path) -> Counts:
    """junitparser, which counts elements."""
    return clients.python("junitparser", folder)


def xunit_viewer(clients: Clients, folder: Path) -> Counts:
    """xunit-viewer, by the last line on its console."""
    told = clients.node("xunit-viewer", "-r", folder, "-c", "-n", "-o", clients.scratch / "viewer.html")
    *_, last = (line for line in told.partition("\nWritten to:")[0].splitlines() if line)
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}


def junit_to_ctrf(clients: Clients, folder: Path) -> Counts:
    """junit-to-ctrf; it has no word for an error."""
    summary = ctrf_report(clients, folder)["summary"]
    return _in_our_words({word: summary[word] for word in ("passed", "failed", "skipped", "pending", "other")})


def ctrf_report(clients: Clients, folder: Path) -> Mapping[str, Any]:
    """All that junit-to-ctrf gives back."""
    report = clients.scratch / "ctrf.json"
    clients.node("junit-to-ctrf", folder / "*.xml", "-o", report)
    results: Mapping[str, Any] = json.loads(report.read_text())["results"]
    return results


def allure(clients: Clients, folder: Path) -> Counts:
    """Allure 3, by the summary of its report."""
    return _in_our_words({word: number for word, number in allure_stats(clients, folder).items() if word in _ALLURE})


_ALLURE: Final = frozenset({"passed", "failed", "broken", "skipped", "unknown"})


def allure_stats(clients: Clients, folder: Path) -> Mapping[str, int]:
    """The statistics of Allure's report."""
    report = clients.scratch / "allure"
    shutil.rmtree(report, ignore_errors=True)
    clients.node("allure", "generate", folder, "-o", report)
    stats: Mapping[str, int] = json.loads((report / "summary.json").read_text())["stats"]
    return stats


def datadog(clients: Clients, folder: Path) -> str:
    """What datadog-ci would upload; it counts files, and leaves testcases to its server."""
    files = sorted(folder.glob("*.xml"))
    return clients.node(
        "datadog-ci", "junit", "upload", "--dry-run", "--service", "s", "--skip-git-metadata-upload", *files
    )


def _in_our_words(counts: Counts) -> Counts:
    own: Counter[str] = Counter()
    for word, number in counts.items():
        own[_WORDS.get(word, word)] += number
    return +own


COUNTING: Final[Mapping[str, Callable[[Clients, Path], Counts]]] = {
    "codecov": codecov,
    "junit2html": junit2html,
    "junitparser": junitparser,
    "xunit-viewer": xunit_viewer,
    "junit-to-ctrf": junit_to_ctrf,
    "allure": allure,
}
"""The clients that count testcases."""

WITHOUT_ERRORS: Final = frozenset({"junit2html", "junit-to-ctrf"})
"""Those that take an error for a failure."""


def as_seen_by(client: str, counts: Counts) -> Counts:
    """These counts, in as many words as a client has."""
    if client not in WITHOUT_ERRORS:
        return counts
    bad = counts.get("failure", 0) + counts.get("error", 0)
    rest = {word: number for word, number in counts.items() if word not in {"failure", "error"}}
    return rest | ({"failure": bad} if bad else {})
