"""The command that starts a node's agent: directly, or in a Charliecloud or Apptainer container.

Neither changes the user, the process ids or the network, so the agent's standard input, process group and signals are
the same inside as outside. Charliecloud's ch-run execs the agent; any process that Apptainer leaves in between is
the node supervisor's child, and ends with the agent's process group. For Docker see :mod:`.node_docker`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allranks.agent.container_init import ISOLATED


@dataclass(frozen=True, kw_only=True)
class AgentFolders:
    """The folders that an agent needs."""

    job: Path  # the job's folder
    code: Path  # the folder that the suite's paths are relative to
    package: Path  # a folder with the package ``allranks``


@dataclass(frozen=True, kw_only=True)
class AgentLaunch:
    """The command that starts an agent, and its environment."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    container: str = ""  # the name of the agent's container, if it may outlive this command


TMP: Final = Path("/tmp")  # noqa: S108 - the container's own
_MOUNT_POINTS: Final = "allranks"

INSIDE: Final = AgentFolders(
    job=TMP / _MOUNT_POINTS / "job", code=TMP / _MOUNT_POINTS / "code", package=TMP / _MOUNT_POINTS / "package"
)
"""The folders in a container. They are below /tmp, where the node's scratch folder is mounted, because a read-only
image may lack other mount points, and the runtimes cannot always add them."""

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of images that set none, as with Docker."""

HOST_VARIABLES: Final = ("PYTHONHOME", "TMPDIR")
"""Variables that name folders of the node, and would be misread in the container."""


def agent_command(python: str, folders: AgentFolders, node: int) -> tuple[str, ...]:
    """The command of a node's agent; if it runs in a container, `folders` are the paths inside."""
    own = folders.job / f"node-{node}"
    return (
        *(python, *ISOLATED, str(folders.package / "allranks" / "agent" / "__main__.py")),
        *("--config", str(own / "config.json")),
        *("--code", str(folders.code)),
        *("--results", str(own / "results")),
        *("--shared", str(folders.job / "shared")),
    )


def contained(
    container: str, agent: tuple[str, ...], outside: AgentFolders, scratch: Path, variables: Mapping[str, str]
) -> AgentLaunch:
    """The command that starts the agent in a container.

    Args:
        container: ``RUNTIME:IMAGE``.
        agent: The agent's command, with the folders of :data:`INSIDE`.
        outside: The folders on the node.
        scratch: The folder that becomes the container's /tmp; :func:`make_mount_points` has prepared it.
        variables: The agent's environment on the node. GPUs are made available if it names any.

    Raises:
        ValueError: The runtime is unknown.
    """
    runtime, _, image = container.partition(":")
    kept = {name: value for name, value in variables.items() if name not in HOST_VARIABLES}
    kept["PYTHONPATH"] = str(INSIDE.package)
    match runtime:
        case "charliecloud":
            entry = (*charliecloud(image, outside), *agent)
            # ch-run mounts TMPDIR at /tmp, and unsets the variable inside. It refuses to start without USER.
            return AgentLaunch(command=entry, variables={"USER": "user", **kept, "TMPDIR": str(scratch)})
        case "apptainer":
            entry = (*apptainer(image, outside, scratch, kept.get("CUDA_VISIBLE_DEVICES", "")), *agent)
            return AgentLaunch(command=entry, variables=kept)
    msg = f"no agent can be started in a container of {runtime}"
    raise ValueError(msg)


def make_mount_points(scratch: Path) -> None:
    """Make the empty folders on which the folders of the node are mounted."""
    for name in (INSIDE.job, INSIDE.code, INSIDE.package):
        (scratch / _MOUNT_POINTS / name.name).mkdir(parents=True)


def charliecloud(image: str, outside: AgentFolders) -> tuple[str, ...]:
    """The prefix of a command in a container, for Charliecloud 0.31 or later (ch-run(1)).

    Charliecloud cannot bind a folder read-only. The container has the host's devices, and a GPU's libraries if
    ``ch-fromhost --nvidia`` has put them into the image.
    """
    own = Path(image, "ch", "environment")  # where ch-convert(1) puts the variables of a Docker image
    return (
        "ch-run",
        *(f"--bind={source}:{target}" for source, target in mounts(outside)),
        f"--cd={INSIDE.job / 'shared'}",
        f"--set-env=PATH={_PATH}",
        *((f"--set-env={own}",) if own.is_file() else ()),
        *(image, "--"),
    )


def apptainer(image: str, outside: AgentFolders, scratch: Path, gpus: str) -> tuple[str, ...]:
    """The prefix of a command in a container, for Apptainer 1.0 or later, without the user's home.

    Args:
        image: A file or folder, or a reference such as ``docker://name``.
        outside: The folders on the node.
        scratch: The container's /tmp.
        gpus: NVIDIA devices, separated by commas; empty for none.
    """
    job, *others = mounts(outside)
    return (
        *("apptainer", "exec", "--no-home", "--no-mount", "cwd,tmp"),
        *("--bind", f"{scratch}:{TMP}", "--bind", "{}:{}".format(*job)),
        *(word for source, target in others for word in ("--bind", f"{source}:{target}:ro")),
        *(("--nv",) if gpus else ()),
        *("--pwd", str(INSIDE.job / "shared")),
        image,
    )


def mounts(outside: AgentFolders) -> tuple[tuple[Path, Path], ...]:
    """Pairs of source on the node and target in the container; only the first, the job's, must be writable."""
    return (outside.job, INSIDE.job), (outside.code, INSIDE.code), (outside.package, INSIDE.package)
