"""The embedded engine: a job is a process on this host, in a session and a scratch folder of its own."""

import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from allranks.engine.ownership import RUN_VARIABLE, forget_dead_runs, is_dead, process_namespace
from allranks.engine.protocol import EventSink, JobExit
from allranks.engine.spec import JobSpec
from allranks.engine.stream import EventStream
from allranks.errors import EngineError
from allranks.harness.events import Event
from allranks.harness.hangup import HANGUP_STATUS
from allranks.harness.kernel import is_readable

STOP_GRACE = 8.0
"""Seconds for an agent to stop its ranks (three seconds at the most) and to write its results."""

ORDERLY = frozenset({0, 1, HANGUP_STATUS})
"""Exit statuses of an agent that has stopped its ranks, with all that they had started."""

_SCRATCH_PREFIX = "allranks-job-"


class ProcessEngine:
    """Runs agents on this host.

    Args:
        package_path: A folder that holds the package ``allranks`` and nothing else that Python could import.
    """

    name = "process"

    def __init__(self, package_path: Path) -> None:
        self._package_path = package_path

    @contextmanager
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> Iterator["ProcessJob"]:
        """See :meth:`allranks.engine.protocol.Engine.start`."""
        scratch = _make_scratch(spec)
        try:
            job = self._spawn(spec, scratch, held)
            try:
                yield job
            finally:
                job.stop()
                job.close()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _spawn(self, spec: JobSpec, scratch: Path, held: Sequence[int]) -> "ProcessJob":
        if spec.python is None:
            msg = f"job {spec.job_id} names no interpreter"
            raise EngineError(msg)
        try:
            for name in ("results", "shared", "tmp"):
                (scratch / name).mkdir()
            (scratch / "config.json").write_text(spec.agent.to_json(), encoding="utf-8")
            process = subprocess.Popen(
                command(spec.python, spec.code, scratch),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=scratch / "shared",
                env=environment(spec, scratch, self._package_path, os.environ),
                start_new_session=True,
                pass_fds=tuple(held),
            )
        except OSError as error:
            msg = f"The agent of {spec.job_id} could not be started."
            raise EngineError(msg, why=str(error), remedy="Check process.python in the matrix file.") from error
        return ProcessJob(process, scratch, spec.resources.seconds)

    def reap(self) -> list[str]:
        """Kill the processes of this host whose run has no owner any more, and remove its scratch folders."""
        dead = [pid for pid, run_id in _processes_of_runs() if is_dead(run_id)]
        for pid in dead:
            _kill(pid)
        left = [folder for folder, run_id in _scratch_folders() if is_dead(run_id)]
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        forget_dead_runs()
        return [f"process {pid}" for pid in dead] + [f"folder {folder}" for folder in left]


class ProcessJob:
    """An agent on this host."""

    def __init__(self, process: subprocess.Popen[bytes], scratch: Path, limit: float) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._scratch = scratch
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._stream = EventStream()

    def go(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.go`."""
        self._deadline = time.monotonic() + self._limit
        try:
            os.write(_descriptor(self._process.stdin), b"go\n")
        except BrokenPipeError:
            # It has ended already; `wait` finds out how.
            return

    def wait(self, sink: EventSink) -> JobExit:
        """See :meth:`allranks.engine.protocol.RunningJob.wait`."""
        timed_out = not self._read_until(self._deadline, sink)
        self.stop()
        return JobExit(status=self._process.returncode, timed_out=timed_out, output=self._stream.output)

    def stop(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.stop`."""
        if self._process.returncode is not None:
            return
        _close(self._process.stdin)
        deadline = time.monotonic() + STOP_GRACE
        # An agent whose last events nobody reads would wait for room in the pipe until it is killed.
        self._read_until(deadline, _ignore)
        if not is_readable(self._pidfd, max(0.0, deadline - time.monotonic())):
            self._process.kill()
            is_readable(self._pidfd, None)
        # The agent is dead but not yet reaped, so its number still names this group and no other.
        _kill_group(self._process.pid)
        if self._process.wait() not in ORDERLY:
            # It could not see to its ranks: they died with it, and what they had started did not.
            for pid in _processes_with(temporary_folder(self._scratch)):
                _kill(pid)

    def collect(self, results: Path) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.collect`."""
        try:
            shutil.copytree(self._scratch / "results", results, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            msg = f"The results of a job could not be copied to {results}."
            raise EngineError(msg, why=str(error), remedy="Check the folder's permissions and free space.") from error

    def close(self) -> None:
        """Let go of an agent that has ended."""
        _close(self._process.stdin)
        _close(self._process.stdout)
        os.close(self._pidfd)

    def _read_until(self, deadline: float, sink: EventSink) -> bool:
        """Read events until the agent has ended; False when the deadline came first."""
        output = _descriptor(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(self._pidfd, selectors.EVENT_READ)
            while (remaining := deadline - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(remaining)}
                data = os.read(output, 1 << 16) if output in ready else b""
                for event in self._stream.feed(data):
                    sink(event)
                # Something that outlived the agent may hold the pipe open: the agent's own end is what counts.
                if ready and not data:
                    return True
        return False


def _make_scratch(spec: JobSpec) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=f"{_SCRATCH_PREFIX}{spec.run_id}."))
    except OSError as error:
        msg = f"A folder for {spec.job_id} could not be made."
        raise EngineError(msg, why=str(error), remedy="Free some space, or set TMPDIR.") from error


def _ignore(_event: Event) -> None:
    """Take an event that is in the job's journal too."""


def _close(file: IO[bytes] | None) -> None:
    if file is not None:
        file.close()


def _descriptor(file: IO[bytes] | None) -> int:
    if file is None:
        msg = "the agent was started without pipes"
        raise ValueError(msg)
    return file.fileno()


def command(python: str, code: Path, scratch: Path) -> list[str]:
    """The agent's command line on this host."""
    return [
        python,
        *("-m", "allranks.harness"),
        *("--config", str(scratch / "config.json")),
        *("--code", str(code)),
        *("--results", str(scratch / "results")),
        *("--shared", str(scratch / "shared")),
    ]


def environment(spec: JobSpec, scratch: Path, package_path: Path, host: Mapping[str, str]) -> dict[str, str]:
    """The agent's variables: the host's, those of the job, and those that keep the job to itself.

    The ranks meet over the loopback interface, because a host's own name may not resolve, and a GPU is visible
    only if the job holds it.
    """
    python_path = (str(package_path), *map(str, spec.python_path), host.get("PYTHONPATH", ""))
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
        **dict([temporary_folder(scratch)]),
        "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus),
        RUN_VARIABLE: spec.run_id,
    }
    return {**host, "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", **spec.environment, **own}


def _processes_with(variable: tuple[str, str]) -> list[int]:
    """The processes that this user may look at and that have a variable of this value."""
    wanted = os.fsencode("=".join(variable))
    processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(process.name) for process in processes if wanted in _variables(process)]


def _variables(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def temporary_folder(scratch: Path) -> tuple[str, str]:
    """The variable that names a job's own folder for temporary files, and by which its processes can be told."""
    return "TMPDIR", str(scratch / "tmp")


def _processes_of_runs() -> Iterator[tuple[int, str]]:
    """Process id and run id of every process that belongs to a run and that this user may look at."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (run_id := _run_of(entry)):
            yield int(entry.name), run_id


def _run_of(process: Path) -> str:
    """The run that a process belongs to; empty for none, and for a container's, whose owner cannot be seen here."""
    marker = f"{RUN_VARIABLE}=".encode()
    try:
        if process_namespace(process) != process_namespace(Path("/proc/self")):
            return ""
    except OSError:
        return ""
    run_id = next((item.removeprefix(marker) for item in _variables(process) if item.startswith(marker)), b"")
    return run_id.decode("utf-8", "replace")


def _scratch_folders() -> Iterator[tuple[Path, str]]:
    """The scratch folders of this user's jobs, each with its run id."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*"):
        run_id = folder.name.removeprefix(_SCRATCH_PREFIX).rpartition(".")[0]
        with suppress(FileNotFoundError):  # its job may end at this moment
            if run_id and folder.stat().st_uid == os.geteuid():
                yield folder, run_id


def _kill(pid: int) -> None:
    """Kill a process and wait for its end: until then it may write into its scratch folder."""
    with suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            is_readable(descriptor, STOP_GRACE)
        finally:
            os.close(descriptor)


def _kill_group(group: int) -> None:
    """Kill what an agent left in its process group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
