"""Runs a workflow file as GitHub does, as far as ours need it: jobs on machines that share only what is passed on.

Each job has a folder of its own for its checkout and its temporary files; its ``run:`` steps are run as they stand, by
bash; GitHub's own actions are copies to and from :class:`service.Service`. What this does not know is an error.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from expressions import Open, Scope, as_text, condition, filled
from service import ActionError, Service

SUMMARY_LIMIT = 1 << 20
TOKEN = "ghs_not-a-secret"  # noqa: S105
WORKFLOW = {"workflow_repository": "owner/allranks", "workflow_sha": "0123456789abcdef0123456789abcdef01234567"}
"""What the job context has of the commit that the workflow comes from."""

RUN_URL = "https://github.com/owner/repository/actions/runs/4711"
INSTALLING = "Install allranks"
PINNED = re.compile(r"(?P<action>[\w./-]+)@[0-9a-f]{40}")
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
ANNOTATION = re.compile(r"::(?P<level>error|warning|notice) ?(?P<properties>[^:]*)::(?P<message>.*)")


def read_workflow(path: Path) -> dict[str, Any]:
    """A workflow file; YAML 1.1 takes the key ``on`` for true."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["on"] = document.pop(True)
    return document


@dataclass(frozen=True)
class Step:
    """A step that has ended: ``success``, ``failure``, ``cancelled`` or ``skipped``."""

    name: str
    outcome: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    log: str = ""
    summary: str = ""


@dataclass(frozen=True)
class JobRun:
    """A job, or one entry of its matrix, that has ended."""

    job: str
    name: str
    attempt: int
    result: str
    matrix: Mapping[str, Any]
    outputs: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    runs_on: Any = None
    environment: str = ""

    @property
    def log(self) -> str:
        return "\n".join(f"--- {step.name}: {step.outcome}\n{step.log}" for step in self.steps)

    @property
    def summary(self) -> str:
        return "\n".join(step.summary for step in self.steps if step.summary)

    @property
    def annotations(self) -> list[dict[str, str]]:
        return [annotation for step in self.steps for annotation in annotations(step.log)]

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)


@dataclass(frozen=True)
class Cancellation:
    """Somebody cancels a job: the entry of that slug, once a step has printed this."""

    slug: str
    when: str


@dataclass(frozen=True)
class Site:
    """What is around a workflow run.

    Attributes:
        workflow: The file's content.
        inputs: What the caller gives; None where an event starts the workflow itself.
        dispatched: What somebody gives who starts the workflow itself.
        repository: What is checked out.
        folder: Where machines have their files; the answers of GitHub's API are files in ``api``.
        environ: What all machines have in their environment.
        event: The webhook's payload.
        event_name: Which event it is.
        allranks: The repository whose commit the workflow comes from; None on a runner that does not tell.
        secrets: What the caller passes on.
        installed: The folder with allranks, which the first job to install it leaves here: the step is the same in all.
        cancellation: What is cancelled, if anything is.
        owner: What machines say of themselves: ``github-hosted`` or ``self-hosted``.
    """

    workflow: Mapping[str, Any]
    inputs: Mapping[str, str] | None
    repository: Path
    folder: Path
    environ: Mapping[str, str]
    event: Mapping[str, Any] = field(default_factory=dict)
    event_name: str = "push"
    allranks: Path | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    dispatched: Mapping[str, str] | None = None
    installed: list[Path] = field(default_factory=list)
    cancellation: Cancellation | None = None
    owner: str = "github-hosted"


@dataclass(frozen=True)
class Run:
    """A workflow run after some attempt.

    Attributes:
        jobs: The newest run of each job, by its id and the slug of its entry.
        service: What has been kept.
    """

    attempt: int
    jobs: Mapping[tuple[str, str], JobRun]
    service: Service

    def job(self, job: str, slug: str = "") -> JobRun:
        return self.jobs[job, slug]

    @property
    def results(self) -> dict[str, str]:
        return {" ".join(filter(None, place)): run.result for place, run in self.jobs.items()}


def first_attempt(site: Site) -> Run:
    """All jobs, one after the other as they need each other."""
    return _attempt(site, Run(0, {}, Service(site.folder / "service")), lambda _job, _slug: True)


def rerun(site: Site, run: Run, wanted: Callable[[str, str], bool]) -> Run:
    """Some jobs again, and all that need them; the others stay as they were."""
    return _attempt(site, replace(run, service=run.service.copy()), wanted)


def run_job(
    site: Site,
    job_id: str,
    needs: Mapping[str, Any],
    service: Service | None = None,
    entry: Mapping[str, Any] | None = None,
) -> JobRun:
    """One job alone, after others that ended so: ``{"plan": {"result": "success", "outputs": {...}}}``."""
    service = service or Service(site.folder / "service")
    return _Machine(site, job_id, 1, entry or {}, _contexts(site, 1, needs), service).run()


def run_step(
    site: Site, job_id: str, name: str, needs: Mapping[str, Any] | None = None, entry: Mapping[str, Any] | None = None
) -> Step:
    """One step alone, on a machine that has nothing."""
    job = site.workflow["jobs"][job_id]
    alone = {**job, "steps": [step for step in job["steps"] if step["name"] == name], "outputs": {}}
    workflow = {**site.workflow, "jobs": {**site.workflow["jobs"], job_id: alone}}
    return run_job(replace(site, workflow=workflow), job_id, needs or {}, entry=entry).step(name)


def _attempt(site: Site, before: Run, wanted: Callable[[str, str], bool]) -> Run:
    jobs, again = dict(before.jobs), set()
    attempt = before.attempt + 1
    for job_id, job in site.workflow["jobs"].items():
        after_others = any(need in again for need in _needs(job))
        selected = [slug for (known, slug) in jobs if known == job_id and wanted(job_id, slug)]
        if after_others or selected or not any(known == job_id for known, _ in jobs):
            again.add(job_id)
            only = None if after_others or not selected else selected
            jobs.update(_run_job(site, job_id, attempt, jobs, before.service, only))
    return Run(attempt, jobs, before.service)


def _needs(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else needs


def _run_job(  # noqa: PLR0917
    site: Site,
    job_id: str,
    attempt: int,
    jobs: Mapping[tuple[str, str], JobRun],
    service: Service,
    only: Sequence[str] | None,
) -> dict[tuple[str, str], JobRun]:
    job = site.workflow["jobs"][job_id]
    needs = {need: _need(need, jobs, site.workflow) for need in _needs(job)}
    results = [need["result"] for need in needs.values()]
    status = {
        "always": True,
        "success": all(result == "success" for result in results),
        "failure": "failure" in results,
        "cancelled": False,
    }
    contexts = _contexts(site, attempt, needs)
    if not condition(job.get("if"), Scope(contexts, status)):
        return {(job_id, ""): JobRun(job_id, job["name"], attempt, "skipped", {})}
    entries = _entries(job, Scope(contexts))
    if not entries:
        return {(job_id, ""): JobRun(job_id, job["name"], attempt, "failure", {})}
    chosen = [entry for entry in entries if only is None or entry.get("slug", "") in only]
    with ThreadPoolExecutor(len(chosen)) as pool:
        ended = list(pool.map(lambda entry: _Machine(site, job_id, attempt, entry, contexts, service).run(), chosen))
    return {(job_id, run.matrix.get("slug", "")): run for run in ended}


def _entries(job: Mapping[str, Any], scope: Scope) -> list[dict[str, Any]]:
    if "strategy" not in job:
        return [{}]
    matrix = filled(job["strategy"]["matrix"], scope)
    if set(matrix) != {"include"}:
        msg = f"the stand-in knows nothing of a matrix with {sorted(matrix)}"
        raise NotImplementedError(msg)
    return matrix["include"]


def _need(need: str, jobs: Mapping[tuple[str, str], JobRun], workflow: Mapping[str, Any]) -> dict[str, Any]:
    runs = [run for (job_id, _), run in jobs.items() if job_id == need]
    results = {run.result for run in runs}
    result = next(item for item in ("failure", "cancelled", "skipped", "success") if item in results)
    outputs = dict.fromkeys(workflow["jobs"][need].get("outputs", {}), "")
    for run in runs:
        outputs.update({name: value for name, value in run.outputs.items() if value})
    return {"result": result, "outputs": outputs}


def _contexts(site: Site, attempt: int, needs: Mapping[str, Any]) -> dict[str, Any]:
    return {"github": _github(site, attempt), "needs": needs, "inputs": _inputs(site), "secrets": _secrets(site)}


def _inputs(site: Site) -> dict[str, Any]:
    """Every input of a call, or of a dispatch; the others, and all of another event, are null."""
    of_calls = site.workflow["on"]["workflow_call"]["inputs"]
    of_dispatches = (site.workflow["on"].get("workflow_dispatch") or {}).get("inputs", {})
    declared, given = (of_calls, site.inputs) if site.inputs is not None else (of_dispatches, site.dispatched)
    values = dict.fromkeys({**of_calls, **of_dispatches})
    if given is None:
        return values
    if unknown := set(given) - set(declared):
        raise KeyError(*unknown)
    return values | {name: given.get(name, item.get("default", "")) for name, item in declared.items()}


def _secrets(site: Site) -> dict[str, str | None]:
    """What the workflow declares; a secret that nobody passed is null."""
    declared = site.workflow["on"]["workflow_call"].get("secrets", {})
    if unknown := set(site.secrets) - set(declared):
        raise KeyError(*unknown)
    return {name: site.secrets.get(name) for name in declared}


def _github(site: Site, attempt: int) -> dict[str, Any]:
    return {
        "event": Open(site.event),
        "event_name": site.event_name,
        "ref": "refs/heads/main",
        "repository": "owner/repository",
        "run_attempt": str(attempt),
        "run_id": "4711",
        "token": TOKEN,
    }


class _Machine:
    """A fresh machine, for one job."""

    def __init__(  # noqa: PLR0917
        self,
        site: Site,
        job_id: str,
        attempt: int,
        entry: Mapping[str, Any],
        contexts: Mapping[str, Any],
        service: Service,
    ) -> None:
        self._site, self._job_id, self._attempt, self._entry = site, job_id, attempt, entry
        self._service = service
        self._job = site.workflow["jobs"][job_id]
        self._folder = site.folder / f"attempt-{attempt}" / f"{job_id}-{entry.get('slug', '')}-{os.urandom(3).hex()}"
        self._workspace, self._temp = self._folder / "work", self._folder / "temp"
        self._environ: dict[str, str] = {}
        self._path: list[str] = []
        self._steps: list[Step] = []
        self._by_id: dict[str, Any] = {}
        self._status = "success"
        self._after: list[Callable[[], object]] = []
        self._contexts = {
            **contexts,
            "job": {"status": "success", **(WORKFLOW if site.allranks else {})},
            "matrix": entry,
            "steps": self._by_id,
            "runner": {"temp": str(self._temp)},
        }

    def run(self) -> JobRun:
        for folder in (self._workspace, self._temp):
            folder.mkdir(parents=True)
        before = Scope(self._contexts)
        self._environ = {
            **self._site.environ,
            **{name: as_text(value) for name, value in filled(self._site.workflow.get("env", {}), before).items()},
            **{name: as_text(value) for name, value in filled(self._job.get("env", {}), before).items()},
        }
        self._contexts["env"] = self._environ
        self._limit = float(filled(self._job["timeout-minutes"], before))
        for step in self._job["steps"]:
            self._take(step)
        if self._status == "success":
            for action in self._after:
                action()
        return JobRun(
            job=self._job_id,
            name=as_text(filled(self._job["name"], before)),
            attempt=self._attempt,
            result=self._status,
            matrix=self._entry,
            outputs={name: as_text(filled(value, Scope(self._contexts))) for name, value in self._outputs.items()},
            steps=tuple(self._steps),
            runs_on=filled(self._job["runs-on"], before),
            environment=as_text(filled(self._job.get("environment", ""), before)),
        )

    @property
    def _outputs(self) -> Mapping[str, str]:
        return self._job.get("outputs", {})

    @property
    def _scope(self) -> Scope:
        return Scope(
            self._contexts,
            {
                "always": True,
                "success": self._status == "success",
                "failure": self._status == "failure",
                "cancelled": self._status == "cancelled",
            },
        )

    def _take(self, step: Mapping[str, Any]) -> None:
        if unknown := set(step) - {"name", "id", "if", "uses", "with", "env", "run", "timeout-minutes"}:
            msg = f"the stand-in knows nothing of {unknown} in a step"
            raise NotImplementedError(msg)
        if not condition(step.get("if"), self._scope):
            ended = Step(step["name"], "skipped")
        else:
            ended = self._uses(step) if "uses" in step else self._runs(step)
        self._steps.append(ended)
        if "id" in step:
            declared = dict.fromkeys(_outputs_named(self._site.workflow, self._job_id, step["id"]), "")
            self._by_id[step["id"]] = {"outputs": {**declared, **ended.outputs}, "outcome": ended.outcome}
        if ended.outcome in ("failure", "cancelled") and self._status != "cancelled":
            self._status = ended.outcome

    def _uses(self, step: Mapping[str, Any]) -> Step:
        action = PINNED.fullmatch(step["uses"])["action"]
        inputs = {name: as_text(filled(value, self._scope)) for name, value in step.get("with", {}).items()}
        try:
            result = getattr(self, "_" + re.sub(r"\W", "_", action))(inputs)
        except ActionError as error:
            return Step(step["name"], "failure", log=f"::error::{error}")
        outputs = {"artifact-url": f"{RUN_URL}/artifacts/1"} if action == "actions/upload-artifact" else {}
        return Step(step["name"], "success", outputs, log=str(result))

    def _actions_checkout(self, inputs: Mapping[str, str]) -> str:
        """The repository in place of all that there is, or that of the workflow at its commit, beside it."""
        if inputs.get("persist-credentials") != "false":
            msg = f"a checkout with {inputs} leaves a token behind"
            raise ActionError(msg)
        match {name: value for name, value in inputs.items() if name != "persist-credentials"}:
            case {} if len(inputs) == 1:
                shutil.rmtree(self._workspace)
                shutil.copytree(self._site.repository, self._workspace)
            case {"repository": repository, "ref": ref, "path": path}:
                if {"workflow_repository": repository, "workflow_sha": ref} != WORKFLOW or not self._site.allranks:
                    msg = f"Not found: {repository} at {ref}"
                    raise ActionError(msg)
                shutil.copytree(self._site.allranks, self._workspace / path)
            case others:
                msg = f"the stand-in knows nothing of a checkout with {others}"
                raise ActionError(msg)
        return "checked out"

    def _actions_setup_python(self, _inputs: Mapping[str, str]) -> str:
        """Any version: the one that runs the tests."""
        self._path.insert(0, str(Path(sys.executable).parent))
        return sys.version

    def _actions_upload_artifact(self, inputs: Mapping[str, str]) -> str:
        return self._service.upload(inputs, self._attempt, self._workspace)

    def _actions_download_artifact(self, inputs: Mapping[str, str]) -> str:
        return self._service.download(inputs, self._workspace)

    def _actions_cache(self, inputs: Mapping[str, str]) -> str | None:
        self._after.append(lambda: self._service.save(inputs, self._workspace))
        return self._service.restore(inputs, self._workspace)

    def _actions_cache_restore(self, inputs: Mapping[str, str]) -> str | None:
        return self._service.restore(inputs, self._workspace)

    def _actions_cache_save(self, inputs: Mapping[str, str]) -> str:
        return self._service.save(inputs, self._workspace)

    def _runs(self, step: Mapping[str, Any]) -> Step:
        if step["name"] == INSTALLING and self._site.installed:
            (self._temp / "allranks").symlink_to(self._site.installed[0])
            return Step(step["name"], "success", log="it was installed before")
        files = {name: self._folder / f"{name}-{len(self._steps)}" for name in ("output", "summary", "path", "env")}
        for file in files.values():
            file.touch()
        script = self._folder / f"step-{len(self._steps)}.sh"
        script.write_text(step["run"])
        shell = (
            BASH if self._site.workflow.get("defaults", {}).get("run", {}).get("shell") == "bash" else ("bash", "-e")
        )
        seconds = 60 * float(filled(step.get("timeout-minutes", self._limit), self._scope))
        outcome, log = self._process([*shell, str(script)], self._step_environ(step, files), seconds)
        self._path[:0] = files["path"].read_text().splitlines()
        self._environ.update(_pairs(files["env"].read_text()))
        summary = files["summary"].read_text()
        if len(summary.encode()) > SUMMARY_LIMIT:
            summary, log = "", f"{log}\n::error::$GITHUB_STEP_SUMMARY upload aborted"
        if step["name"] == INSTALLING:
            self._site.installed.append(self._temp / "allranks")
        return Step(step["name"], outcome, _pairs(files["output"].read_text()), log, summary)

    def _step_environ(self, step: Mapping[str, Any], files: Mapping[str, Path]) -> dict[str, str]:
        own = {name: as_text(value) for name, value in filled(step.get("env", {}), self._scope).items()}
        return {
            **self._environ,
            **own,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTOR": "somebody",
            "GITHUB_API_URL": (self._site.folder / "api").as_uri(),
            "GITHUB_ENV": str(files["env"]),
            "GITHUB_OUTPUT": str(files["output"]),
            "GITHUB_PATH": str(files["path"]),
            "GITHUB_REPOSITORY": "owner/repository",
            "GITHUB_STEP_SUMMARY": str(files["summary"]),
            "GITHUB_WORKSPACE": str(self._workspace),
            "PATH": os.pathsep.join([*self._path, self._site.environ["PATH"]]),
            "RUNNER_ENVIRONMENT": self._site.owner,
            "RUNNER_TEMP": str(self._temp),
        }

    def _process(self, command: Sequence[str], environ: Mapping[str, str], seconds: float) -> tuple[str, str]:
        """What a step's first process comes to. Nobody else is told of a cancellation."""
        lines: list[str] = []
        cancelled = threading.Event()
        with subprocess.Popen(
            command,
            cwd=self._workspace,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            overdue = threading.Timer(seconds, _end, (process, cancelled))
            overdue.start()
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if self._is_cancelled_by(line) and not cancelled.is_set():
                    threading.Thread(target=_end, args=(process, cancelled)).start()
            code = process.wait()
            overdue.cancel()
        log = "\n".join(lines)
        return "cancelled" if cancelled.is_set() else "failure" if code else "success", log

    def _is_cancelled_by(self, line: str) -> bool:
        cancellation = self._site.cancellation
        return bool(cancellation and self._entry.get("slug") == cancellation.slug and cancellation.when in line)


def _end(process: subprocess.Popen[str], cancelled: threading.Event) -> None:
    """SIGINT, 7.5 s later SIGTERM, 2.5 s later the end of the whole tree: what the runner does."""
    cancelled.set()
    for sign, seconds in ((signal.SIGINT, 7.5), (signal.SIGTERM, 2.5)):
        process.send_signal(sign)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        return
    os.killpg(process.pid, signal.SIGKILL)


def _outputs_named(workflow: Mapping[str, Any], job_id: str, step_id: str) -> Iterable[str]:
    """The outputs of a step that its workflow speaks of: the only ones that may be asked for."""
    text = json.dumps(workflow["jobs"][job_id])
    return re.findall(rf"steps\.{step_id}\.outputs\.([\w-]+)", text)


def _pairs(text: str) -> dict[str, str]:
    """What a step has written to GITHUB_OUTPUT, a line for each."""
    pairs = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not equals or "<<" in name:
            msg = f"the stand-in knows nothing of the output {line!r}"
            raise NotImplementedError(msg)
        pairs[name] = value
    return pairs


def annotations(log: str) -> list[dict[str, str]]:
    """What the runner takes for annotations, up to ten of a kind; nothing between stop-commands and its word."""
    word, found = "", []
    for line in map(str.lstrip, log.splitlines()):
        if word:
            word = "" if line == f"::{word}::" else word
        elif line.startswith("::stop-commands::"):
            word = line.removeprefix("::stop-commands::")
        elif match := ANNOTATION.fullmatch(line):
            properties = dict(pair.partition("=")[::2] for pair in match["properties"].split(",") if pair)
            found.append({**properties, "level": match["level"], "message": match["message"]})
    return found
