"""Run an agent on a small suite, follow its records, and read its results."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from allranks.agent.container_init import COMMAND, ISOLATED
from allranks.protocol import records
from allranks.protocol.config import AgentConfig, TimeLimits
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Passed, RankEnded, TestStarted
from allranks.protocol.xml_text import split_nodeid

PATIENCE = 90.0
"""Seconds for any wait; reached only if allranks is broken."""

CONFIG = AgentConfig(
    cell="gloo-w2-g0-env",
    suite="small",
    paths=("suite",),
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
    """The outcome of one rank in one test."""

    outcome: str
    message: str
    text: str
    properties: dict
    stdout: str
    stderr: str
    classname: str
    name: str

    @property
    def is_bad(self):
        return Outcome(self.outcome).is_bad


def launch_command(arguments, environment, folder, stdin, stdout):
    """Start an agent as jobs do."""
    process = subprocess.Popen(
        [sys.executable, *ISOLATED, str(COMMAND), *arguments],
        stdin=stdin,
        stdout=stdout,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
    return process.pid, process.wait


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
        variables = {**agent_environment(), "WORDS": str(self.folder / "words"), **environment}
        self.pid, self._exit_status = launch(arguments, variables, self.folder / "shared", stdin, stdout)
        self.records = []
        self._changed = threading.Condition()
        self._has_ended = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._pidfd = os.pidfd_open(self.pid)
        os.close(stdin)
        os.close(stdout)

    def go(self):
        with suppress(BrokenPipeError):  # it has already ended, for example because of invalid options
            os.write(self._stdin, b"go\n")
        return self

    def close_stdin(self):
        if self._stdin is not None:
            os.close(self._stdin)
        self._stdin = None

    def signal(self, number):
        signal.pidfd_send_signal(self._pidfd, number)

    def word(self):
        """The next line that a rank writes to the FIFO ``$WORDS``."""
        line = b""
        while not line.endswith(b"\n"):
            assert wait_for(self._words), "no rank wrote the word"
            line += os.read(self._words, 1)
        return line.decode().strip()

    def words(self):
        """All unread lines that ranks have written to the FIFO."""
        os.write(self._words, b"\n")
        return list(iter(self.word, ""))

    def _listen(self):
        with os.fdopen(os.dup(self._stdout), "rb") as stream:
            for line in stream:
                with self._changed:
                    self.records.append(records.decode(line.lstrip(b"\x1e")))
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def wait_for(self, kind):
        """Wait for a record of this kind."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.all(kind) or self._has_ended, PATIENCE), f"no {kind.__name__}"
            assert self.all(kind), f"the agent ended without {kind.__name__}: {self.log}"

    def wait(self):
        """The agent's exit status, when it has ended."""
        assert wait_for(self._pidfd), f"the agent does not end: {self.log}"
        self._listener.join(PATIENCE)
        return self._exit_status()

    @property
    def log(self):
        return (self.results / "agent.log").read_text()

    def all(self, kind):
        """The records of a kind."""
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def ends(self):
        """The outcome of each rank in each test, from the agent's records."""
        return [end for record in self.all(Passed | RankEnded) for end in each_end(record)]

    def arrived(self, test):
        """The outcome of each rank in one test, in the order of the records; later passes come last."""
        return [end for end in self.ends if end.nodeid.endswith(f"::{test}")]

    def leaders(self, test):
        """The primary failures of a test, in the order of their arrival."""
        return [end for end in self.arrived(test) if end.outcome.is_bad and not end.consequence]

    def cases(self, rank):
        """The outcomes of a rank by the name of the test; the first bad one of several counts."""
        cases = {}
        for record in self.all(TestStarted):
            begun = RankEnded(
                nodeid=record.nodeid, rank=rank, outcome=Outcome.MISSING, world_size=2, arrived=0.0,
                message="no result arrived: the job and the rank ended during this test",
            )  # fmt: skip
            cases[split_nodeid(record.nodeid)[1]] = case_of(begun)
        for end in self.ends:
            name = split_nodeid(end.nodeid)[1]
            before = cases.get(name)
            if end.rank == rank and (before is None or before.outcome == "missing" or not before.is_bad):
                cases[name] = case_of(end)
        return cases

    def outcomes(self, test):
        """The outcome of a test on each rank."""
        return tuple(self.cases(rank)[test].outcome for rank in range(self.config.world_size))

    def gangs(self):
        """The process ids of each gang."""
        return [list(record.pids) for record in self.all(records.GangStarted)]

    def assert_nothing_left(self):
        """Wait until no process has its working directory in this run's folder, as all descendants of the agent do."""
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
    """The environment of the tests without plugins: loading hypothesis takes half a second per agent."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    return {**keep, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def write_files(folder, files):
    for name, text in files.items():
        path = folder / "suite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def each_end(record):
    if isinstance(record, RankEnded):
        return [record]
    return [
        RankEnded(
            nodeid=record.nodeid, rank=rank, outcome=Outcome.PASSED, world_size=record.world_size, arrived=at,
        )
        for rank, at in zip(record.ranks, record.arrived, strict=True)
    ]  # fmt: skip


def case_of(end):
    classname, name = split_nodeid(end.nodeid)
    return Case(
        outcome=end.outcome.value,
        message=end.message,
        text=end.text,
        properties={key: str(value) for key, value in asdict(end).items() if value is not None},
        stdout=end.stdout,
        stderr=end.stderr,
        classname=classname,
        name=name,
    )


def wait_for(descriptor):
    return bool(select.select([descriptor], [], [], PATIENCE)[0])


def wait_for_pid(pid):
    """Wait for the end of a process; False if it does not end."""
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
