"""Runs dist.yml on act, a runner for GitHub's workflows: jobs in containers of their own, with GitHub's own actions.

What act writes becomes the same :class:`hosted.JobRun` as that of the stand-in, so tests read both alike.
"""

import json
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from act_runner import Runner
from artifact_proxy import artifact_proxy
from hosted import JobRun, Step

LABEL = f"allranks.act={os.getpid()}"
"""Of the containers that are machines in this process's runs."""

LIMIT = 900
"""Seconds for a run: act has no limit of its own for a job that hangs."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class ActRun:
    """A run of a workflow that has ended.

    Attributes:
        jobs: The jobs that ran, by id and the slug of the matrix entry.
        artifacts: The folder in which act keeps the run's artifacts.
        log: All that act wrote.
    """

    jobs: Mapping[tuple[str, str], JobRun]
    artifacts: Path
    log: str

    def job(self, job: str, slug: str = "") -> JobRun:
        return self.jobs[job, slug]

    @property
    def results(self) -> dict[str, str]:
        return {" ".join(filter(None, place)): run.result for place, run in self.jobs.items()}

    @property
    def summary(self) -> str:
        """The summary page of the run."""
        return "\n".join(run.summary for run in self.jobs.values())

    @property
    def errors(self) -> list[str]:
        """The messages of all error annotations."""
        return [
            annotation["message"]
            for run in self.jobs.values()
            for annotation in run.annotations
            if annotation["level"] == "error"
        ]


def see_nothing(_line: Line) -> None:
    """Watch a run that is not disturbed."""


def run_on_act(
    runner: Runner, repository: Path, folder: Path, *, workflow: str, watch: Callable[[Line], object] = see_nothing
) -> ActRun:
    """Push a repository's commit.

    Args:
        runner: What all runs share.
        repository: A clone with a commit.
        folder: A folder of the run's own.
        workflow: The workflow's path in the repository.
        watch: Called with each line of act's JSON log, as it comes.
    """
    folder.mkdir(parents=True)
    lines, text = [], []
    with artifact_proxy() as (port, address):
        command = [
            *(runner.program, "push", "--json", "--rm", "--workflows", workflow, "--pull=false"),
            *(f"--platform={label}={runner.image}" for label in ("ubuntu-24.04", "self-hosted")),
            *("--action-offline-mode", "--action-cache-path", str(folder / "actions")),
            *(f"--local-repository={name}={place}" for name, place in runner.copies.items()),
            *("--artifact-server-addr", "127.0.0.1", "--artifact-server-port", str(port)),
            *("--artifact-server-path", str(folder / "artifacts")),
            *("--cache-server-addr", "127.0.0.1", "--cache-server-path", str(folder / "caches")),
            *("--container-options", f"--label {LABEL} --cpu-shares 2 --volume {runner.wheels}:/wheels:ro"),
            *("--env", "PIP_NO_INDEX=1", "--env", "PIP_FIND_LINKS=/wheels", "--env", "PIP_NO_COMPILE=1"),
            *("--env", "AGENT_TOOLSDIRECTORY=/opt/tools"),
        ]
        environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "ACTIONS_RUNTIME_URL": address}
        environ |= {name: os.environ[name] for name in ("DOCKER_HOST",) if name in os.environ}
        with subprocess.Popen(
            command,
            cwd=repository,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            overdue = [_after(LIMIT, process, signal.SIGINT), _after(LIMIT + 60, process, signal.SIGKILL)]
            try:
                for line in process.stdout:
                    text.append(line)
                    if line.startswith("{"):
                        lines.append(json.loads(line))
                        watch(lines[-1])
            finally:
                for timer in overdue:
                    timer.cancel()
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
    (folder / "log").write_text("".join(text))
    return ActRun(_jobs(lines), folder / "artifacts", "".join(text))


def _after(seconds: float, process: subprocess.Popen[str], sign: signal.Signals) -> threading.Timer:
    timer = threading.Timer(seconds, process.send_signal, (sign,))
    timer.start()
    return timer


def _jobs(lines: Iterable[Line]) -> dict[tuple[str, str], JobRun]:
    """All jobs with a step: the one that calls a workflow has none, and one that is skipped has no line."""
    of_jobs = defaultdict(list)
    for line in lines:
        if "jobID" in line:
            of_jobs[line["jobID"].rpartition("/")[2], line["matrix"].get("slug", "")].append(line)
    return {place: _job(place[0], own) for place, own in of_jobs.items() if any("step" in line for line in own)}


def _job(job: str, lines: list[Line]) -> JobRun:
    steps = defaultdict(list)
    for line in lines:
        if line.get("stage") == "Main":
            steps[line["step"]].append(line)
    return JobRun(
        job=job,
        name=lines[0]["job"].strip(),
        attempt=1,
        result=next((line["jobResult"] for line in reversed(lines) if "jobResult" in line), "lost"),
        matrix=lines[0]["matrix"],
        steps=[_step(name, own) for name, own in steps.items()],
    )


def _step(name: str, lines: list[Line]) -> Step:
    return Step(
        name=name,
        outcome=next((line["stepResult"] for line in lines if "stepResult" in line), "lost"),
        outputs={line["name"]: line["arg"] for line in lines if line.get("command") == "set-output"},
        log="".join(line.get("raw", line["msg"]) for line in lines if "raw" in line or line.get("raw_output")),
        summary="".join(line["content"] for line in lines if line.get("command") == "summary"),
    )
