"""images.yml looks for room before it builds, by what is to be built."""

import os
from pathlib import Path

import pytest
from hosted import Site, read_workflow, run_job

IMAGES = Path(__file__).parents[2] / ".github" / "workflows" / "images.yml"
ROOM = "Look for room"

MACHINE = """\
mkdir -p "$RUNNER_TEMP/allranks/bin"
printf '#!/bin/sh\\necho cpu: 1\\nfor each; do if [ "$each" = --without-gpus ]; then exit; fi; done\\n%s\\n' "$MORE" \
  > "$RUNNER_TEMP/allranks/bin/allranks"
chmod +x "$RUNNER_TEMP/allranks/bin/allranks"
"""


@pytest.fixture
def looked(tmp_path):
    """``looked(free=20, cuda=True)``: the step, on a machine whose docker's disk has so many GB."""

    def look(*, free, cuda, root="/"):
        for name, output in (("docker", root), ("df", f"Avail\n{free * 10**9}")):
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\nprintf '%s\\n' '{output}'\n")
            path.chmod(0o755)
        workflow = read_workflow(IMAGES)
        job = workflow["jobs"]["push"]
        [room] = [step for step in job["steps"] if step["name"] == ROOM]
        machine = {"name": "Machine", "run": MACHINE, "env": {"MORE": "echo cuda: 2" if cuda else ""}}
        job["steps"] = [machine, room]
        site = Site(
            workflow=workflow,
            inputs={"registry": "ghcr.io/owner/repository"},
            repository=tmp_path / "none",
            folder=tmp_path,
            environ={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        )
        return run_job(site, "push", {}).step(ROOM)

    return look


@pytest.mark.parametrize(("free", "cuda"), [(14, False), (30, True), (200, True)])
def test_a_machine_with_room_builds(looked, free, cuda):
    assert looked(free=free, cuda=cuda).outcome == "success"


@pytest.mark.parametrize(("free", "cuda", "needed"), [(5, False, 6), (14, True, 30)])
def test_one_without_is_refused_with_a_sentence(looked, free, cuda, needed):
    step = looked(free=free, cuda=cuda)
    assert step.outcome == "failure"
    assert f"::error title=No room for the images::They take up to {needed} GB while they are built" in step.log
    assert f"has {free} GB" in step.log


def test_the_disk_of_a_daemon_elsewhere_is_its_own_affair(looked):
    assert looked(free=1, cuda=True, root="/no/such/folder").outcome == "success"
