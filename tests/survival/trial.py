"""One disturbed run, from its start until nothing of it is left."""

import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import judging
from cluster import Cluster
from incidents import FAILURE, Moment, eater
from neighbours import GPU, Neighbours
from project import CODE, GPUS, write_project
from scene import LAST_RESORT, Incident, Scene
from world import HostDaemon, mount_disk, unmount, until

from allranks.engines.package import package_folder

_RESULTS_MIB: Final = 24
_LINGER: Final = 15.0
"""Seconds until killed processes and shims are gone; SLURM kills processes that do not end after ten."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The environment of trials.

    Attributes:
        engine: ``process``, ``docker`` or ``slurm``.
        daemon: None for trials without containers.
        cluster: None for trials on this host.
        gpus: The GPUs that jobs may lease.
        lengths: The durations of undisturbed runs in seconds. Moments are drawn from the shortest, so that on a busy
            machine few of them come too late.
    """

    folder: Path
    engine: str
    daemon: HostDaemon | None
    neighbours: Neighbours
    cluster: Cluster | None = None
    gpus: tuple[str, ...] = GPUS
    lengths: list[float] = field(default_factory=list)

    @property
    def length(self) -> float:
        """Seconds of an undisturbed run."""
        return min(self.lengths, default=0.0)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of a trial.

    Attributes:
        moment: When the incident happened, as a fraction of the duration of an undisturbed run.
        met: Whether the run was still running then.
        after: How the run was cleaned up.
        seconds: From the incident to the run's end.
    """

    name: str
    engine: str
    moment: Moment
    seed: str
    met: bool
    code: int
    seconds: float
    after: str
    notes: tuple[str, ...]
    wrong: tuple[str, ...]
    output: str
    folder: Path

    @property
    def line(self) -> str:
        """A summary in one line."""
        end = f"exit {self.code} after {self.seconds:.1f} s, {self.after}"
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        state = "WRONG" if self.wrong else "ok" if self.met else "ok, over before"
        return f"{self.name}@{_shown(self.moment)} on {self.engine} (--seed {self.seed}): {end}{notes}: {state}"

    @property
    def story(self) -> str:
        """The problems and the output."""
        wrong = "\n".join(f"- {problem}" for problem in self.wrong)
        return f"{self.line}\n{wrong}\noutput:\n{self.output}\nfiles: {self.folder}"


NOTHING: Final = Incident(
    name="nothing", strike=lambda scene: scene.process.wait() is None, codes=(CODE,), is_harmless=True
)


def measure(place: Place) -> None:
    """Measure how long an undisturbed run takes; raises AssertionError if it fails."""
    trial = attempt(place, NOTHING, 0.0, "0")
    assert not trial.wrong, trial.story


def attempt(place: Place, incident: Incident, moment: Moment, seed: str) -> Trial:
    """Run, let the incident happen, and judge the results."""
    folder = Path(tempfile.mkdtemp(prefix=f"{incident.name}-", dir=place.folder))
    drawn = random.Random(f"{incident.name}/{place.engine}/{moment}/{seed}")  # noqa: S311 - chance
    repository, results = folder / "repository", folder / "results"
    spans = place.cluster is not None or place.daemon is not None
    spool = place.cluster.spool if place.cluster else None
    write_project(repository, spans_nodes=spans, eats=eater(drawn) if incident.eats else None, spool=spool)
    mount_disk(results, _RESULTS_MIB)
    try:
        trial = _attempt(place, incident, moment, seed, drawn, folder)
        if trial.wrong:
            shutil.copytree(results, folder / "kept", symlinks=True)
    finally:
        unmount(results)
    (place.folder / f"{incident.name}@{_shown(moment)}.txt").write_text(trial.story)
    if not trial.wrong:
        shutil.rmtree(folder)
    return trial


def _attempt(  # noqa: PLR0917 - each is something else
    place: Place, incident: Incident, moment: Moment, seed: str, drawn: random.Random, folder: Path
) -> Trial:
    run_id = f"survival-{secrets.token_hex(4)}"
    environment = _environment(place, run_id)
    known = frozenset((*judging.strangers(frozenset()), *_temporary(place).iterdir(), *_on_nodes()))
    log = folder / "output.txt"
    command = [sys.executable, "-m", "allranks", "run", "--engine", place.engine, "--results", str(folder / "results")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder / "repository",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    scene = Scene(
        run_id=run_id,
        engine=place.engine,
        process=process,
        repository=folder / "repository",
        results=folder / "results",
        environment=environment,
        daemon=place.daemon,
        cluster=place.cluster,
        drawn=drawn,
        output=lambda: log.read_text(errors="replace"),
    )
    started = time.monotonic()
    _wait_for(moment, scene, place.length)
    began = time.monotonic()
    met = not scene.is_over and incident.strike(scene)
    if not met:
        process.wait()
        place.lengths.append(time.monotonic() - started)
    try:
        process.wait(max(0.1, LAST_RESORT - (time.monotonic() - began)))
    except subprocess.TimeoutExpired:
        scene.wrong.append(f"it hangs: no end after {LAST_RESORT:g} s")
        process.kill()
        process.wait()
    seconds = time.monotonic() - began
    incident.mend(scene)
    judge = _Judge(place, incident, scene, known, met)
    wrong = [*scene.wrong, *judge.all(seconds)]
    return Trial(
        name=incident.name,
        engine=place.engine,
        moment=moment,
        seed=seed,
        met=met,
        code=process.returncode,
        seconds=seconds,
        after=judge.after,
        notes=tuple(scene.notes),
        wrong=tuple(wrong),
        output=scene.output() + judge.output,
        folder=folder,
    )


def _on_nodes() -> Iterator[Path]:
    return Path("/tmp").glob("allranks-node-*")


def _wait_for(moment: Moment, scene: Scene, length: float) -> None:
    if moment == FAILURE:
        until(lambda: scene.is_over or ": first failure: " in scene.output(), LAST_RESORT, "the run fails in nothing")
        return
    with suppress(subprocess.TimeoutExpired):
        scene.process.wait(moment * length)


def _shown(moment: Moment) -> str:
    return moment if moment == FAILURE else f"{moment:.3f}"


def _temporary(place: Place) -> Path:
    folder = place.folder / "tmp"
    folder.mkdir(exist_ok=True)
    return folder


def _environment(place: Place, run_id: str) -> dict[str, str]:
    own = {
        "ALLRANKS_RUN_ID": run_id,
        "ALLRANKS_GPUS": ",".join((*place.gpus, GPU)) if place.gpus else "",
        "TMPDIR": str(_temporary(place)),
        "XDG_CACHE_HOME": str(place.folder / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(package_folder().parent), os.environ.get("PYTHONPATH", "")))),
        "DOCKER_HOST": place.daemon.address if place.daemon else "unix:///nowhere",
    }
    host = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONDONTWRITEBYTECODE", "GITHUB_ACTIONS"}
    }
    return {**host, **own, **(place.cluster.environment if place.cluster else {})}


class _Judge:
    """Checks what is left of a run, merges its results, cleans up, and checks again."""

    def __init__(self, place: Place, incident: Incident, scene: Scene, known: frozenset[int | Path], met: bool) -> None:
        self._place = place
        self._incident = incident
        self._scene = scene
        self._known = known
        self._met = met
        self._run = scene.results / scene.run_id
        self.after = "nothing to do"
        self.output = ""

    def all(self, seconds: float) -> Iterator[str]:
        incident, scene = self._incident, self._scene
        yield from judging.of_words(scene.output())
        yield from self._of_code()
        if self._met and seconds > 2 * (self._place.length or LAST_RESORT) + incident.seconds:
            yield f"it took {seconds:.1f} s more"
        if incident.is_clean:
            yield from (f"before any clean-up, {item}" for item in self._left())
        if (self._run / "run.json").exists():
            yield from self._of_results()
        yield from self._clean_up()
        yield from judging.of_words(self.output)
        yield from self._left()
        yield from judging.of_leases(self._command("doctor", "--gpus")) if self._place.gpus else ()
        yield from self._place.neighbours.harm()

    def _of_code(self) -> Iterator[str]:
        code, output = self._scene.process.returncode, self._scene.output()
        allowed = self._incident.codes if self._met else (CODE,)
        if self._met and not (self._run / "run.json").exists():
            # Python or allranks had hardly started.
            allowed = (*allowed, -15, -2)
        if f"exit code {CODE}:" in output and not self._incident.is_harmless:
            # The run had printed everything when the incident happened.
            allowed = (*allowed, CODE)
        if code not in allowed:
            yield f"exit code {code}, not {' or '.join(map(str, allowed))}"
        if code == 4 and self._incident.says and not any(word in output for word in self._incident.says):
            yield f"it did not print {' or '.join(map(repr, self._incident.says))}"
        if code == 130 and not (self._run / "report.json").exists() and (self._run / "run.json").exists():
            yield "it was interrupted, and there is no report"

    def _of_results(self) -> Iterator[str]:
        self._command("report", str(self._run))
        report = self._run / "report.json"
        if not report.exists():
            yield "there is no report of what is left"
            return
        found = judging.read_report(report)
        is_whole = (self._incident.is_harmless or not self._met) and not self._incident.eats
        spoiled = self._incident.spoils
        yield from judging.of_report(self._run, found, self._scene.output(), is_whole=is_whole, is_spoiled=spoiled)
        if self._incident.is_written:
            yield from judging.of_printed_failures(found, self._scene.output())
        if self._incident.eats and not any("out-of-memory killer" in message for message in found.messages.values()):
            yield "no message names the out-of-memory killer"

    def _clean_up(self) -> Iterator[str]:
        """Clean up with the command, or by resuming the run, which must end with the usual results."""
        scene = self._scene
        self.after = "clean" if self._incident.eats else scene.drawn.choice(("clean", "clean", "clean", "resume"))
        if self.after == "clean" or not (self._run / "run.json").exists():
            self.after = "clean"
            self._command("clean")
            return
        output = self._command("run", "--engine", scene.engine, "--results", str(scene.results), "--resume")
        if f"exit code {CODE}:" not in output:
            yield f"resumed: it did not end with exit code {CODE}"
        found = judging.read_report(self._run / "report.json")
        may_crash = self._incident.kills_ranks and self._place.engine != "docker"
        wrong = judging.of_report(self._run, found, output, is_whole=True, may_crash=may_crash)
        yield from (f"resumed: {problem}" for problem in wrong)

    def _command(self, *arguments: str) -> str:
        done = self._scene.allranks(*arguments)
        output = done.stdout + done.stderr
        self.output += f"$ allranks {' '.join(arguments)}\n{output}"
        return output

    def _left(self) -> list[str]:
        def look() -> list[str]:
            known = self._known | self._place.neighbours.pids
            found = list(judging.of_host(self._scene.run_id, _temporary(self._place), known))
            daemon = self._place.daemon
            found += judging.in_daemon(self._scene.run_id, daemon) if daemon else ()
            return found + list(self._place.cluster.left(self._known) if self._place.cluster else ())

        with suppress(TimeoutError):
            lingers = not self._incident.is_clean or self._place.cluster is not None
            until(lambda: not look(), _LINGER if lingers else 2.0, "")
        return look()
