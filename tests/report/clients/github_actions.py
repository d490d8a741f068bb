"""Runs the published actions that annotate from JUnit XML, and says what they count and which lines they point at."""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from client_counts import Clients, Counts
from services import ACTIONS as NAMES

ENRICOMI, MIKEPENZ, DORNY = NAMES
_ENRICOMI: Final = Path(__file__).with_name("enricomi_counts.py")

Place = tuple[str, int]


@dataclass(frozen=True)
class Seen:
    """What an action makes of a report.

    Attributes:
        places: File and line of each annotation.
    """

    counts: Counts
    places: frozenset[Place]


def enricomi(clients: Clients, action: Path, folder: Path, _: Path) -> Seen:
    """By its own modules, without the part that asks GitHub."""
    python = clients.folder / "actions" / "enricomi-python" / "bin" / "python"
    told = json.loads(clients.run(python, _ENRICOMI, action / "python", *sorted(folder.glob("*.xml"))).splitlines()[-1])
    return Seen(told["counts"], frozenset(map(tuple, told["places"])))


def mikepenz(clients: Clients, action: Path, folder: Path, repository: Path) -> Seen:
    """Its annotations are workflow commands."""
    inputs = {
        "report_paths": f"{folder}/*.xml", "annotate_only": "true", "token": "none", "check_name": "c", "job_name": "j",
        "truncate_stack_traces": "true", "follow_symlink": "false", "resolve_ignore_classname": "false",
        "group_reports": "true", "include_skipped": "true", "check_title_template": "", "transformers": "[]",
        "job_summary": "false",
    }  # fmt: skip
    told, outputs = _run_action(clients, action, inputs, repository)
    found = re.findall(r"^::error [^\n]*?\bfile=([^,\n]+),line=(\d+)", told, re.MULTILINE)
    words = {"passed": "passed", "skipped": "skipped", "failed": "failure"}
    return Seen(
        {ours: int(outputs[theirs]) for theirs, ours in words.items() if int(outputs[theirs])},
        frozenset((file, int(line)) for file, line in found),
    )


def dorny(clients: Clients, action: Path, folder: Path, repository: Path, reporter: str = "phpunit-junit") -> Seen:
    """Its annotations go to GitHub, for which a server on this host stands in."""
    inputs = {
        "name": "n", "path": f"{folder}/*.xml", "reporter": reporter, "list-suites": "all", "list-tests": "all",
        "list-files": "all", "max-annotations": "50", "fail-on-error": "false", "fail-on-empty": "true",
        "token": "none", "collapsed": "auto",
        "use-actions-summary": "false",
    }  # fmt: skip
    with _github() as (address, bodies):
        _, outputs = _run_action(clients, action, inputs, repository, GITHUB_API_URL=address)
    annotations = [each for body in bodies for each in body.get("output", {}).get("annotations", ())]
    words = {"passed": "passed", "skipped": "skipped", "failed": "failure"}
    return Seen(
        {ours: int(outputs[theirs]) for theirs, ours in words.items() if int(outputs[theirs])},
        frozenset((each["path"], each["start_line"]) for each in annotations),
    )


def _run_action(
    clients: Clients, action: Path, inputs: Mapping[str, str], repository: Path, **more: str
) -> tuple[str, dict[str, str]]:
    """What an action prints, and its outputs."""
    files = {name: clients.scratch / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    environ = {
        **{name: said for name, said in os.environ.items() if not name.startswith(("GITHUB_", "INPUT_"))},
        **{f"INPUT_{name.upper()}": said for name, said in inputs.items()},
        **{name: str(file) for name, file in files.items()},
        "GITHUB_REPOSITORY": "o/r", "GITHUB_SHA": "0" * 40, "GITHUB_EVENT_NAME": "push", "GITHUB_RUN_ID": "1",
        "GITHUB_WORKSPACE": str(repository), "RUNNER_TEMP": str(clients.scratch), **more,
    }  # fmt: skip
    done = subprocess.run(
        [shutil.which("node") or "node", action / "dist" / "index.js"],
        cwd=repository, env=environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"^(\w+)<<(\S+)\n(.*?)\n\2$", files["GITHUB_OUTPUT"].read_text(), re.MULTILINE | re.DOTALL)
    return done.stdout, {name: value for name, _, value in said}


@contextmanager
def _github() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A stand-in for GitHub's checks: its address, and what is sent to it."""
    bodies: list[dict[str, Any]] = []

    class Checks(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer = json.dumps({"id": 1, "html_url": "http://localhost/1", "url": "http://localhost/1"}).encode()
            self.send_response(201 if self.command == "POST" else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PATCH = do_POST  # noqa: N815 - the name that the base class calls

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Checks) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


ACTIONS: Final = {ENRICOMI: enricomi, MIKEPENZ: mikepenz, DORNY: dorny}
