"""Has a run meet with every incident at random moments, and prints what came of it; exit status 1 on one wrong end.

    python tests/survival/soak.py [COUNT] [INCIDENT[@MOMENT] ...] [--engine ENGINE] [--seed SEED] [--at-most SECONDS]
        [--host-daemon]

10 moments of every incident on all engines, unless it says so. A moment is a part of the length of an undisturbed
run, which is measured first; `sigkill@0.42 --seed 7` repeats one. `sigkill@failure` is the moment in which a run tells
of its first failure, and needs no measure. Needs root: see world.py.
"""

import argparse
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from cluster import own_cluster
from incidents import wanted
from neighbours import Neighbours
from project import GPUS, write_project
from scene import ALL, BOTH, ON_CLUSTERS, Incident
from trial import FAILURE, Moment, Place, Trial, attempt, measure
from world import INSIDE, HostDaemon, enter_world, in_world, own_daemon, why_no_world

from allranks.errors import EngineError
from allranks.images.base import find_base
from allranks.images.built_image import ensure_image
from allranks.images.docker_client import connect
from allranks.images.recipe import recipe_of
from allranks.matrix.declaration import load
from allranks.matrix.jobs import plan

COUNT = 10

_FURTHER = 4
_EARLIER = 0.95


def main(arguments: Sequence[str]) -> int:
    options = _read(arguments)
    if INSIDE in os.environ:
        return _inside(options)
    if reason := why_no_world():
        sys.exit(f"There is no world to do this in: {reason}.")
    images = []
    if "docker" in options.engine:
        try:
            images = list(_images())
        except EngineError as error:
            if options.is_chosen:
                sys.exit(f"not in containers: {error.why}")
            print(f"not in containers: {error.why}")
            options.engine.remove("docker")
            arguments = [*arguments, *(f"--engine={engine}" for engine in options.engine)]
    folder = Path(tempfile.mkdtemp(prefix="allranks-survival-"))
    program = [__file__, *arguments, "--images", *images]
    network = [] if options.host_daemon else ["--net"]
    with in_world(program, folder, *network) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
    return process.returncode


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", nargs="*")
    parser.add_argument("--engine", action="append", choices=ALL)
    parser.add_argument("--seed", default="")
    parser.add_argument("--host-daemon", action="store_true", help="disturb no daemon, and start none")
    parser.add_argument("--at-most", type=float, default=math.inf, help="seconds after which no further moment begins")
    parser.add_argument("--images", nargs="*", default=[])
    options = parser.parse_args(arguments)
    options.count = int(options.what.pop(0)) if options.what and options.what[0].isdecimal() else COUNT
    options.incidents = list(wanted(options.what))
    options.is_chosen = bool(options.engine)
    options.engine = options.engine or [*BOTH, *(ON_CLUSTERS if _has_slurm() else ())]
    return options


def _has_slurm() -> bool:
    programs = ("sbatch", "srun", "slurmctld", "slurmd", "munged", "ip")
    return all(shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") for program in programs)


def _images() -> Iterator[str]:
    """The project's image and its base, made where they are not there yet: in a world there is no package index."""
    with tempfile.TemporaryDirectory() as scratch, closing(connect()) as client:
        write_project(Path(scratch, "project"))
        expansion = load(Path(scratch, "project"))
        image, root = plan(expansion.matrix, expansion.cells)[0].image, expansion.matrix.root
        yield ensure_image(image, root=root, client=client, progress=print).reference
        yield find_base(client, recipe_of(image, root=root).base, environ=os.environ, progress=print).reference


def _inside(options: argparse.Namespace) -> int:
    folder = enter_world()
    seed = options.seed or str(random.SystemRandom().randrange(1 << 30))
    print(f"seed {seed}; folder {folder}", flush=True)
    began = time.monotonic()
    trials: list[Trial] = []
    for engine in options.engine:
        with _place(folder / engine, engine, options) as place:
            if not all(moment == FAILURE for _, moment in options.incidents):
                measure(place)
                print(f"{engine}: an undisturbed run takes {place.length:.1f} s", flush=True)
            for trial in _trials(place, options, seed):
                trials.append(trial)
                print(trial.story if trial.wrong else trial.line, flush=True)
    print(_table(trials))
    wrong = sum(bool(trial.wrong) for trial in trials)
    over = sum(not trial.met for trial in trials)
    late = f", {over} over before they met with anything" if over else ""
    print(f"{len(trials)} runs in {time.monotonic() - began:.0f} s, {wrong or 'none'} of them wrong{late}")
    return 1 if wrong or over or not trials else 0


@contextmanager
def _place(folder: Path, engine: str, options: argparse.Namespace) -> Iterator[Place]:
    folder.mkdir()
    with ExitStack() as stack:
        daemon, gpus = None, GPUS
        if engine == "docker" and options.host_daemon:
            daemon, gpus = HostDaemon(), ()
        elif engine == "docker":
            daemon = stack.enter_context(own_daemon(folder / "daemon", options.images))
        (folder / "tmp").mkdir()
        cluster = None
        if engine == "slurm":
            cluster, gpus = stack.enter_context(own_cluster(folder)), ()
        neighbours = stack.enter_context(Neighbours(daemon, folder / "tmp", options.images[:1]).here())
        yield Place(folder=folder, engine=engine, daemon=daemon, neighbours=neighbours, cluster=cluster, gpus=gpus)


def _trials(place: Place, options: argparse.Namespace, seed: str) -> Iterator[Trial]:
    deadline = time.monotonic() + options.at_most
    chosen = []
    for incident, moment in options.incidents:
        if reason := _why_not(incident, place.engine, options):
            print(f"{incident.name} on {place.engine}: not done, {reason}", flush=True)
        else:
            chosen.append((incident, moment))
    for number in range(options.count):  # one moment of each, then the next of each
        for incident, moment in chosen:
            if time.monotonic() > deadline:
                print(f"{incident.name} on {place.engine}: moment {number + 1} not done, the time is up", flush=True)
            else:
                drawn = random.Random(f"{seed}/{incident.name}/{place.engine}/{number}").random()  # noqa: S311 - a moment
                yield _attempt_in_time(place, incident, drawn if moment is None else moment, seed)


def _why_not(incident: Incident, engine: str, options: argparse.Namespace) -> str:
    if engine not in incident.engines:
        return "it has no such thing"
    if incident.needs_own_daemon and options.host_daemon:
        return "others would notice"
    return ""


def _attempt_in_time(place: Place, incident: Incident, moment: Moment, seed: str) -> Trial:
    """A trial; where the run was quicker than others and over by then, further ones, each a little earlier."""
    trial = attempt(place, incident, moment, seed)
    for _ in range(_FURTHER):
        if trial.met or trial.wrong:
            break
        moment = moment if moment == FAILURE else moment * _EARLIER
        trial = attempt(place, incident, moment, seed)
    return trial


def _table(trials: Sequence[Trial]) -> str:
    groups: Mapping[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.name, trial.engine].append(trial)
    width = max((len(name) for name, _ in groups), default=8)
    head = f"{'incident':{width}}  engine   moments  met  wrong  codes              longest s"
    return "\n".join(["", head, *(_row(*key, group, width) for key, group in groups.items()), ""])


def _row(name: str, engine: str, trials: Sequence[Trial], width: int) -> str:
    codes = ", ".join(map(str, sorted({trial.code for trial in trials})))
    met, wrong = sum(trial.met for trial in trials), sum(bool(trial.wrong) for trial in trials)
    longest = max(trial.seconds for trial in trials)
    return f"{name:{width}}  {engine:7}  {len(trials):7}  {met:3}  {wrong:5}  {codes:17}  {longest:9.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
