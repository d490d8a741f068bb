"""One agent on a small suite of a test's own: start it, follow it, and read what it left."""

import contextlib
import os
import select
import signal
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree as ET

from allranks.harness.config import AgentConfig, TimeLimits
from allranks.harness.events import parse_lines, read_events

PATIENCE = 90.0
"""Seconds that any wait may take: only a broken harness uses them up."""

CONFIG = AgentConfig(
    cell="gloo-w2-g0-env",
    suite="small",
    path="suite",
    backend="gloo",
    world_size=2,
    gpu_count=0,
    init_method="env",
    isolation="file",
    limits=TimeLimits(process_group=20, test=30, job=120, peer_grace=0.5),
    seed=7,
)


@dataclass(frozen=True)
class Case:
    """One test on one rank, from ``rank-N.xml``."""

    outcome: str
    message: str
    text: str
    properties: dict
    stdout: str
    stderr: str
    classname: str
    name: str


class AgentRun:
    """A running or ended agent.

    Attributes:
        pid: Its process id.
        results: Its results folder.
    """

    def __init__(self, folder, files, launch, *, environment=(), closed_stdin=False, **changes):
        limits = replace(CONFIG.limits, **changes.pop("limits", {}))
        self.config = replace(CONFIG, limits=limits, **changes)
        self.folder = folder
        self.results = folder / "results"
        for name in ("code", "results", "shared"):
            (folder / name).mkdir()
        write_files(folder / "code", files)
        (folder / "config.json").write_text(self.config.to_json())
        os.mkfifo(folder / "words")
        self._words = os.open(folder / "words", os.O_RDWR)
        self._start(launch, dict(environment), closed_stdin)

    def _start(self, launch, environment, closed_stdin):
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        if closed_stdin:
            self.close_stdin()
        arguments = ["--config", str(self.folder / "config.json")]
        for name in ("code", "results", "shared"):
            arguments += [f"--{name}", str(self.folder / name)]
        surroundings = {**agent_environment(), "WORDS": str(self.folder / "words"), **environment}
        self.pid, self._exit_status = launch(arguments, surroundings, self.folder / "shared", stdin, stdout)
        self._pidfd = os.pidfd_open(self.pid)
        os.close(stdin)
        os.close(stdout)

    def go(self):
        os.write(self._stdin, b"go\n")
        return self

    def close_stdin(self):
        if self._stdin is not None:
            os.close(self._stdin)
        self._stdin = None

    def signal(self, number):
        signal.pidfd_send_signal(self._pidfd, number)

    def word(self):
        """The next line that a rank has written to the FIFO ``$WORDS``."""
        line = b""
        while not line.endswith(b"\n"):
            assert wait_for(self._words), "no rank wrote the word"
            line += os.read(self._words, 1)
        return line.decode().strip()

    def words(self):
        """All lines that ranks have written to the FIFO and nobody has read."""
        os.write(self._words, b"\n")
        return list(iter(self.word, ""))

    def wait_for_event(self, kind):
        """Wait until the agent has streamed an event of this kind."""
        data = b""
        while not any(event["event"] == kind for event in parse_lines(data.splitlines())):
            assert wait_for(self._stdout), f"no event {kind}"
            more = os.read(self._stdout, 65536)
            assert more, f"the agent ended without the event {kind}: {self.log}"
            data += more

    def wait(self):
        """The agent's exit status, when it has ended."""
        assert wait_for_end(self._pidfd, self._stdout), f"the agent does not end: {self.log}"
        return self._exit_status()

    @property
    def log(self):
        return (self.results / "agent.log").read_text()

    def journal(self, kind):
        return [event for event in read_events(self.results / "events-agent.jsonl") if event["event"] == kind]

    def events(self, rank, kind):
        return [event for event in read_events(self.results / f"events-{rank}.jsonl") if event["event"] == kind]

    def arrived(self, test):
        """What the agent wrote about each rank of a test, in the order of its arrival."""
        return [event for event in self.journal("arrived") if event["nodeid"].endswith(f"::{test}")]

    def cases(self, rank):
        """What ``rank-N.xml`` says, by the name of the test."""
        document = ET.parse(self.results / f"rank-{rank}.xml")  # noqa: S314 - our own
        cases = [read_case(element) for element in document.iter("testcase")]
        return {case.name: case for case in cases}

    def outcomes(self, test):
        """The outcome of a test on each rank."""
        return tuple(self.cases(rank)[test].outcome for rank in range(self.config.world_size))

    def gangs(self):
        """The process ids of each gang."""
        return [event["ranks"] for event in self.journal("gang_started")]

    def assert_nothing_left(self):
        """Wait until no process works in this run's folder; all descendants of the agent do, whatever their parent."""
        for pid in processes_in(self.folder / "shared"):
            assert wait_for_pid(pid), f"process {pid} is left"

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.close_stdin()
        for descriptor in (self._pidfd, self._stdout, self._words):
            os.close(descriptor)
        try:
            self.assert_nothing_left()
        finally:
            for pid in processes_in(self.folder / "shared"):
                os.kill(pid, signal.SIGKILL)


def agent_environment():
    """The tests' own environment, without plugins: hypothesis alone costs an agent half a second."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    return {**keep, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def write_files(folder, files):
    for name, text in files.items():
        path = folder / "suite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def read_case(element):
    properties = {entry.get("name").removeprefix("allranks."): entry.get("value") for entry in element.iter("property")}
    ends = [child for child in element if child.tag in ("failure", "error", "skipped")]
    end = ends[0] if ends else ET.Element("none")
    return Case(
        outcome=properties["outcome"],
        message=end.get("message", ""),
        text=end.text or "",
        properties=properties,
        stdout=element.findtext("system-out", ""),
        stderr=element.findtext("system-err", ""),
        classname=element.get("classname"),
        name=element.get("name"),
    )


def wait_for(descriptor):
    return bool(select.select([descriptor], [], [], PATIENCE)[0])


def wait_for_end(pidfd, output):
    """Read the agent's output, lest it fill the pipe, until its process has ended."""
    deadline = time.monotonic() + PATIENCE
    open_ends = [pidfd, output]
    while (remaining := deadline - time.monotonic()) > 0:
        ready = select.select(open_ends, [], [], remaining)[0]
        if pidfd in ready:
            return True
        if output in ready and not os.read(output, 65536):
            open_ends.remove(output)
    return False


def wait_for_pid(pid):
    """Whether a process has ended, waiting for it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return wait_for(pidfd)
    finally:
        os.close(pidfd)


def processes_in(folder):
    """The living processes whose working directory is `folder`."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and works_in(entry, folder)]


def works_in(process, folder):
    try:
        return (process / "cwd").readlink() == folder
    except OSError:
        return False
