"""What may befall a run, and what may come of it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Literal

import docker
from cluster_incidents import CLUSTER_INCIDENTS
from neighbours import GPU
from project import CODE, COUNTS
from scene import IN_CONTAINERS, INFRASTRUCTURE, INTERRUPTED, LAST_RESORT, NOTHING_RAN, Incident, Scene
from world import OwnDaemon, fill, make_read_only, make_writable

PAUSE: Final = 3.0
"""Seconds that a suspended run is suspended."""


def _signal(number: signal.Signals) -> Callable[[Scene], bool]:
    def strike(scene: Scene) -> bool:
        scene.process.send_signal(number)
        return True

    return strike


def _suspend(scene: Scene) -> bool:
    """Stop the orchestrator; meanwhile another run starts, which must not take what is not its own."""
    scene.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        # A daemon still removes what it was asked to remove just before.
        time.sleep(2)
        before, held = _living(scene), _held(scene)
        scene.notes.append(f"{len(before)} jobs, {len(held)} leases")
        _run_beside(scene, held)
        cleaned = scene.allranks("clean").stdout
        if scene.run_id in cleaned:
            scene.wrong.append(f"a suspended run was cleaned up: {cleaned}")
        if gone := before - _living(scene):
            scene.wrong.append(f"of a suspended run is gone: {sorted(gone)}")
        if _held(scene) != held:
            scene.wrong.append(f"leases of a suspended run are gone: {held}, and now {_held(scene)}")
        time.sleep(max(0.0, PAUSE - (time.monotonic() - began)))
    finally:
        scene.process.send_signal(signal.SIGCONT)
    return True


def _run_beside(scene: Scene, held: dict[str, str]) -> None:
    """Another run of one small job, with the clean-up that every start begins with."""
    run_id, results = f"beside-{scene.run_id}", scene.results.parent / "beside"
    free = set(scene.environment["ALLRANKS_GPUS"].split(",")) - {GPU} - held.keys()
    cell = "gloo-w2-g1-tcp" if any(free) else "gloo-w2-g0-env"
    arguments = ("run", "--engine", scene.engine, "--results", str(results), "--suite", "kept", cell)
    done = scene.allranks(*arguments, "--", "-k", "skipped", ALLRANKS_RUN_ID=run_id)
    if done.returncode != NOTHING_RAN:
        scene.wrong.append(f"the run beside ended with {done.returncode}: {done.stdout}{done.stderr}")
    for record in results.glob(f"{run_id}/cells/*/*/attempt-1/job.json"):
        leased = set(json.loads(record.read_text())["gpus"])
        if not leased <= free:
            scene.wrong.append(f"the run beside was given {leased}, which others held")


def _living(scene: Scene) -> set[str]:
    """The containers and scratch folders of the run: these last until their owner removes them."""
    temporary = Path(scene.environment["TMPDIR"])
    found = {path.name for path in temporary.glob(f"allranks-job-{scene.run_id}.*")}
    if scene.daemon is not None:
        with closing(scene.daemon.connect()) as client:
            found |= {str(container["Id"]) for container in scene.containers(client)}
    if scene.cluster is not None:
        found |= {path.name for path in scene.cluster.spool.glob(f"allranks-{scene.run_id}.*")}
    return found


def _held(scene: Scene) -> dict[str, str]:
    """What `allranks doctor --gpus` says of the run's GPUs."""
    lines = scene.allranks("doctor", "--gpus").stdout.splitlines()
    return {line.split(":")[0]: line for line in lines if f"of run {scene.run_id} " in line}


def _kill_agent(scene: Scene) -> bool:
    if scene.daemon is None:
        pid = scene.whenever(lambda: list(scene.agents()))
        if not isinstance(pid, int):
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False
    return _with_container(scene, lambda client, name: client.api.kill(name))


def _remove_container(scene: Scene) -> bool:
    return _with_container(scene, lambda client, name: client.api.remove_container(name, force=True, v=True))


def _with_container(scene: Scene, act: Callable[[docker.DockerClient, str], None]) -> bool:
    assert scene.daemon is not None
    with closing(scene.daemon.connect()) as client:
        while (found := scene.whenever(lambda: list(scene.containers(client)))) is not None:
            assert isinstance(found, dict)
            # It may be gone by now, or not run yet: then it is another's turn.
            with suppress(docker.errors.APIError):
                act(client, found["Id"])
                scene.notes.append(f"{found['Names'][0]} ({found['State']})")
                return True
    return False


def _remove_network(scene: Scene) -> bool:
    assert scene.daemon is not None
    with closing(scene.daemon.connect()) as client:
        while (found := scene.whenever(lambda: list(scene.networks(client)))) is not None:
            assert isinstance(found, dict)
            with suppress(docker.errors.APIError):
                for item in client.api.inspect_network(found["Id"])["Containers"]:
                    client.api.disconnect_container_from_network(item, found["Id"], force=True)
                client.api.remove_network(found["Id"])
                scene.notes.append(str(found["Name"]))
                return True
    scene.notes.append("the run has no network")
    return False


def _fill_results(scene: Scene) -> bool:
    fill(scene.results)
    return True


def _free_results(scene: Scene) -> None:
    (scene.results / ".filler").unlink(missing_ok=True)


def _lock_results(scene: Scene) -> bool:
    """Make the folder read-only, as soon as no file in it is being written."""
    while not scene.is_over:
        with suppress(OSError):
            make_read_only(scene.results)
            return True
    return False


def _unlock_results(scene: Scene) -> None:
    make_writable(scene.results)


def _own(scene: Scene) -> OwnDaemon:
    assert isinstance(scene.daemon, OwnDaemon)
    return scene.daemon


def _restart_daemon(number: signal.Signals) -> Callable[[Scene], bool]:
    def strike(scene: Scene) -> bool:
        daemon = _own(scene)
        daemon.end(number)
        daemon.start()
        return True

    return strike


def _fill_daemon(scene: Scene) -> bool:
    fill(_own(scene).folder)
    return True


def _free_daemon(scene: Scene) -> None:
    (_own(scene).folder / ".filler").unlink(missing_ok=True)


def _wait_for_the_eater(scene: Scene) -> bool:
    """The moment has been drawn by the test that eats."""
    with suppress(subprocess.TimeoutExpired):
        scene.process.wait(LAST_RESORT)
    return True


def eater(drawn: random.Random) -> tuple[str, str]:
    """An init method and a test: who eats all memory, and so when."""
    tests = [f"test_good[{number}]" for number in range(max(COUNTS.values()))] + ["test_skipped"]
    # These run both suites, or the one that has them all.
    return drawn.choice(("env", "tcp")), drawn.choice(tests)


INCIDENTS: Final[dict[str, Incident]] = {
    incident.name: incident
    for incident in (
        Incident(name="sigint", strike=_signal(signal.SIGINT), codes=(INTERRUPTED,)),
        Incident(name="sigterm", strike=_signal(signal.SIGTERM), codes=(INTERRUPTED,)),
        Incident(name="sigkill", strike=_signal(signal.SIGKILL), codes=(-9,), is_clean=False),
        Incident(name="suspended", strike=_suspend, codes=(CODE,), is_harmless=True, seconds=60),
        Incident(name="agent-killed", strike=_kill_agent, codes=(3, 4, CODE), kills_ranks=True),
        Incident(
            name="container-removed",
            strike=_remove_container,
            codes=(INFRASTRUCTURE,),
            engines=IN_CONTAINERS,
            says=("removed", "could not be started"),
        ),
        Incident(
            name="network-removed",
            strike=_remove_network,
            codes=(CODE, 3, INFRASTRUCTURE),
            engines=IN_CONTAINERS,
            seconds=45,  # before the nodes have compared what they collected, an agent waits half a minute for another
        ),
        Incident(
            name="oom",
            strike=_wait_for_the_eater,
            codes=(CODE, 3),
            engines=IN_CONTAINERS,
            eats=True,
            seconds=LAST_RESORT,
        ),
        Incident(
            name="full-disk",
            strike=_fill_results,
            mend=_free_results,
            codes=(INFRASTRUCTURE,),
            says=("No space left",),
            is_written=False,
        ),
        Incident(
            name="read-only",
            strike=_lock_results,
            mend=_unlock_results,
            codes=(INFRASTRUCTURE,),
            says=("Read-only",),
            is_written=False,
        ),
        Incident(
            name="daemon-restart",
            strike=_restart_daemon(signal.SIGTERM),
            codes=(INFRASTRUCTURE,),
            engines=IN_CONTAINERS,
            needs_own_daemon=True,
            is_clean=False,
            seconds=60,
        ),
        Incident(
            name="daemon-killed",
            strike=_restart_daemon(signal.SIGKILL),
            codes=(INFRASTRUCTURE,),
            engines=IN_CONTAINERS,
            needs_own_daemon=True,
            is_clean=False,
            seconds=60,
        ),
        Incident(
            name="full-daemon",
            strike=_fill_daemon,
            mend=_free_daemon,
            codes=(INFRASTRUCTURE, 3, CODE),
            engines=IN_CONTAINERS,
            needs_own_daemon=True,
            is_clean=False,
            seconds=60,
        ),
        *CLUSTER_INCIDENTS,
    )
}


FAILURE: Final = "failure"
"""The moment in which a run tells of its first failure."""

Moment = float | Literal["failure"]
"""A moment of a run: a part of the length of an undisturbed one, or that of its first failure."""


def wanted(names: list[str]) -> Iterator[tuple[Incident, Moment | None]]:
    """The incidents of some names, each with its moment where one says it: ``sigkill@0.42``."""
    for text in names or list(INCIDENTS):
        name, _, moment = text.partition("@")
        if name not in INCIDENTS:
            sys.exit(f"There is no incident {name}; there are: {', '.join(INCIDENTS)}.")
        yield INCIDENTS[name], "failure" if moment == FAILURE else float(moment) if moment else None
