"""What may befall a run on a cluster."""

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from project import CODE
from scene import INFRASTRUCTURE, ON_CLUSTERS, Incident, Scene
from world import fill


def _cancel_job(scene: Scene) -> bool:
    assert scene.cluster is not None
    cluster = scene.cluster
    listed = ("squeue", "--noheader", "--format=%j", "--states=PENDING,CONFIGURING,RUNNING")
    name = scene.whenever(lambda: list(cluster.slurm(*listed).split()))
    if name is None:
        return False
    scene.notes.append(str(name))
    cluster.slurm("scancel", f"--name={name}")
    return True


def _on_node(command: str) -> Callable[[Scene], bool]:
    def strike(scene: Scene) -> bool:
        assert scene.cluster is not None
        cluster = scene.cluster
        node = scene.whenever(lambda: list(cluster.nodes_in_use()))
        if node is None:
            return False
        scene.notes.append(str(node))
        cluster.script(command, str(node))
        return True

    return strike


def _kill_controller(scene: Scene) -> bool:
    assert scene.cluster is not None
    scene.cluster.script("ctl-kill")
    with suppress(subprocess.TimeoutExpired):
        scene.process.wait(scene.drawn.uniform(1, 12))
    scene.cluster.script("ctl-start")
    return True


def _fill_spool(scene: Scene) -> bool:
    assert scene.cluster is not None
    fill(scene.cluster.spool)
    return True


def _free_spool(scene: Scene) -> None:
    assert scene.cluster is not None
    (scene.cluster.spool / ".filler").unlink(missing_ok=True)


def _heal_cluster(scene: Scene) -> None:
    assert scene.cluster is not None
    scene.cluster.heal()


CLUSTER_INCIDENTS: Final = (
    Incident(
        name="scancel",
        strike=_cancel_job,
        codes=(INFRASTRUCTURE, CODE),
        engines=ON_CLUSTERS,
        says=("was canceled (scancel)",),
        seconds=45,
    ),
    Incident(
        name="node-kill",
        strike=_on_node("node-kill"),
        mend=_heal_cluster,
        codes=(INFRASTRUCTURE, CODE),
        engines=ON_CLUSTERS,
        says=("lost",),
        is_clean=False,
        seconds=120,
    ),
    Incident(
        name="slurmd-kill",
        strike=_on_node("slurmd-kill"),
        mend=_heal_cluster,
        codes=(INFRASTRUCTURE, CODE),
        engines=ON_CLUSTERS,
        is_clean=False,
        seconds=120,
    ),
    Incident(
        name="ctl-kill",
        strike=_kill_controller,
        mend=_heal_cluster,
        codes=(INFRASTRUCTURE, CODE),
        engines=ON_CLUSTERS,
        is_clean=False,
        seconds=90,
    ),
    Incident(
        name="full-spool",
        strike=_fill_spool,
        mend=_free_spool,
        codes=(INFRASTRUCTURE,),
        engines=ON_CLUSTERS,
        says=("No space left", "was filled"),
        spoils=True,
        seconds=120,
    ),
)
