"""What runs of act share: the program, an image of a GitHub machine, copies of the actions, and packages."""

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors
from callers import OWN, ROOT, command

DIST = ROOT / ".github" / "workflows" / "dist.yml"
IMAGE = "allranks/runner:bookworm"
USES = re.compile(r"uses: (?P<action>[\w.-]+/[\w.-]+)(?:/[\w./-]+)?@(?P<commit>[0-9a-f]{40})")


class NoActError(Exception):
    """act cannot run here, and why."""


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What all runs have.

    Attributes:
        program: The path of act.
        image: The Docker image of a GitHub machine.
        copies: A folder for each repository that is used at a commit, by ``OWNER/NAME@COMMIT``.
        wheels: The packages that pip finds in a job; it looks nowhere else.
    """

    program: str
    image: str
    copies: Mapping[str, Path]
    wheels: Path


def runner_here(client: docker.DockerClient, folder: Path) -> Runner:
    """What this machine has, with packages and a copy of dist.yml in a new folder.

    Raises:
        NoActError: Something is missing.
    """
    copies = copies_of_actions()
    program = shutil.which("act")
    if program is None:
        msg = "there is no act on the PATH (`nox -s act` installs it)"
        raise NoActError(msg)
    try:
        client.images.get(IMAGE)
    except docker.errors.ImageNotFound:
        msg = f"there is no image {IMAGE} (scripts/runner-image makes it)"
        raise NoActError(msg) from None
    own = folder / "allranks"
    (own / ".github" / "workflows").mkdir(parents=True)
    shutil.copy(DIST, own / ".github" / "workflows")
    return Runner(program=program, image=IMAGE, copies={**copies, OWN: own}, wheels=_wheels(folder / "wheels"))


def copies_of_actions() -> dict[str, Path]:
    """The actions of dist.yml at the commits that it pins, as scripts/workflow-actions lays them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("ALLRANKS_ACTIONS") or cache / "allranks" / "actions")
    names = {f"{match['action']}@{match['commit']}" for match in USES.finditer(DIST.read_text(encoding="utf-8"))}
    if missing := sorted(name[:-33] for name in names if not (folder / name / "action.yml").exists()):
        msg = f"{folder} lacks {', '.join(missing)} (scripts/workflow-actions brings them from GitHub)"
        raise NoActError(msg)
    return {name: folder / name for name in names}


def _wheels(folder: Path) -> Path:
    """allranks, what it needs, and what builds it, for the Python of any machine."""
    pip = (sys.executable, "-m", "pip")
    command(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT), folder=ROOT)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    pure = ("--only-binary=:all:", "--platform=any", "--implementation=py", "--abi=none", "--python-version=3.11")
    command(*pip, "download", "--quiet", "--dest", str(folder), *pure, *needed, folder=ROOT)
    return folder
