"""A node's agent in a Docker container: how it is started, and reliably removed.

The container is a child of the daemon, so neither SLURM's signals nor its limits reach it::

    docker run ──> the client ends for any reason ──> docker rm --force
       └── the supervisor is killed ──> the container's input ends, and so does the agent, unless it is stuck
                                   └──> the next supervisor on this node removes the container
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allranks.agent import linux
from allranks.plugins.slurm.agent.node_container import HOST_VARIABLES, INSIDE, TMP, AgentFolders, AgentLaunch, mounts

RUNTIME: Final = "docker"

HOST_LABEL: Final = "allranks.host"
"""The :func:`pid_namespace` of a container's owner.

The docker engine has other labels, because it detects dead owners by file locks instead of process ids.
"""

SUPERVISOR_LABEL: Final = "allranks.supervisor"
"""The owner of a container: its process id and start time."""

_ANSWER_WITHIN: Final = 60.0
"""Seconds for an answer of the daemon, which may be busy with the end of a container."""

_PERIOD: Final = 100_000
"""Microseconds: the kernel's default period for CPU quotas."""

_NOT_STARTED: Final = 125
"""The exit status of ``docker run`` if the daemon did not start the container, or has lost it."""

_SIGNALLED, _INTERRUPTED = 128, 130
"""``docker run`` exits with 128 + N if signal N killed the agent, except for 130, with which a stopped agent exits."""

_NODE_VARIABLES: Final = frozenset(
    {*HOST_VARIABLES, "HOME", "HOSTNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "OLDPWD", "PATH"}
    | {"PWD", "PYTHONPATH", "SHELL", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"}
)
"""Variables of the node that an image sets itself, or that name files which the image lacks."""


@dataclass(frozen=True, kw_only=True)
class NodeContainer:
    """A container in Docker 20.10 or later, with the user and the network of the node."""

    name: str
    image: str  # the daemon pulls it if it is missing
    options: Sequence[str]  # the job's own options for ``docker run``, such as its limits
    variables: Mapping[str, str]  # the agent's environment on the node; GPUs are made available if it names any

    def launch(self, agent: tuple[str, ...], outside: AgentFolders, scratch: Path) -> AgentLaunch:
        """The command that starts the agent in this container, with this process as the container's owner.

        Args:
            agent: The agent's command, with the folders of :data:`INSIDE`.
            outside: The folders on the node.
            scratch: The folder that becomes the container's /tmp.
        """
        python, *arguments = agent
        gpus, pid = self.variables.get("CUDA_VISIBLE_DEVICES", ""), os.getpid()
        command = (
            *("docker", "run", "--rm", "--interactive", "--init", f"--name={self.name}"),
            *(f"--label={HOST_LABEL}={pid_namespace()}", f"--label={SUPERVISOR_LABEL}={pid}.{linux.began(pid)}"),
            *("--log-driver=none", "--network=host", "--cgroupns=private", "--read-only", "--ulimit=core=0"),
            *("--cap-drop=ALL", "--security-opt=no-new-privileges"),
            f"--user={os.getuid()}:{os.getgid()}",
            *(f"--group-add={group}" for group in sorted({*os.getgroups()} - {os.getgid()})),
            *_cpus(self.variables),
            *((f'--gpus="device={gpus}"',) if gpus else ()),  # quoted, because a comma would end the value
            f"--mount=type=bind,source={scratch},target={TMP}",
            *(_mount(source, target) for source, target in mounts(outside)),
            f"--workdir={INSIDE.job / 'shared'}",
            *(f"--env={variable}" for variable in sorted(self.variables.keys() - _NODE_VARIABLES)),
            *(f"--env=PYTHONPATH={INSIDE.package}", f"--env=HOME={TMP}", *self.options),
            *(f"--entrypoint={python}", self.image, *arguments),
        )
        return AgentLaunch(command=command, variables={"USER": "user", **self.variables}, container=self.name)


def _mount(source: Path, target: Path) -> str:
    return f"--mount=type=bind,source={source},target={target}{'' if target == INSIDE.job else ',readonly'}"


def _cpus(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Options for the CPUs of this process; if SLURM has not bound it to its CPUs, also a quota of CPU time."""
    own = sorted(os.sched_getaffinity(0))
    given = variables.get("SLURM_CPUS_ON_NODE", "")
    options = (f"--cpuset-cpus={','.join(map(str, own))}",)
    if not given.isdecimal() or not 0 < int(given) < len(own):
        return options
    # Not --cpus: without CPU quotas in the kernel, it is an error, but these options only cause a warning.
    return (*options, f"--cpu-period={_PERIOD}", f"--cpu-quota={_PERIOD * int(given)}")


def agent_status(client: int | None) -> int | None:
    """The agent's exit status, from that of ``docker run``: negative for a signal, None if it is unknown."""
    if client is None or client < 0 or client == _NOT_STARTED:  # the client was killed, or nothing was started
        return None
    return client if client <= _SIGNALLED or client == _INTERRUPTED else _SIGNALLED - client


@contextmanager
def removed_at_end(launch: AgentLaunch) -> Iterator[None]:
    """Clean up after killed supervisors; at the end of the block, remove the launch's container, if it has one.

    Raises:
        OSError: The daemon does not answer.
    """
    if not launch.container:
        yield
        return
    remove_orphans(launch.variables)
    try:
        yield
    finally:
        remove(launch.container, launch.variables)


def remove(name: str, variables: Mapping[str, str]) -> None:
    """Remove a container, if it exists. If the daemon does not answer, a later :func:`remove_orphans` removes it."""
    with suppress(OSError):
        _docker(variables, "rm", "--force", "--volumes", name)


def remove_orphans(variables: Mapping[str, str]) -> None:
    """Remove the containers of killed supervisors in this :func:`pid_namespace`.

    The daemon itself has removed containers of earlier boots (``--rm``).

    Raises:
        OSError: The daemon does not answer.
    """
    labels = ("--filter", f"label={HOST_LABEL}={pid_namespace()}", "--filter", f"label={SUPERVISOR_LABEL}")
    form = f'{{{{.Names}}}} {{{{.Label "{SUPERVISOR_LABEL}"}}}}'
    for line in _docker(variables, "ps", "--all", *labels, "--format", form).splitlines():
        name, _, supervisor = line.partition(" ")
        if _is_dead(supervisor):
            remove(name, variables)


def pid_namespace() -> str:
    """An id of the namespace in which a process id is unique: the boot of this host and its PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{boot} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:16]


def _is_dead(supervisor: str) -> bool:
    """Whether a supervisor is certainly dead: its process id is free, or another process has it by now."""
    pid, _, began = supervisor.partition(".")
    if not (pid.isdecimal() and began.isdecimal()):
        return False
    try:
        os.kill(int(pid), 0)  # noqa: TID251 - its error is the answer
    except ProcessLookupError:
        return True
    except OSError:  # another user's process, whose start time may be hidden
        pass
    return linux.began(int(pid)) not in {0, int(began)}


def _docker(variables: Mapping[str, str], *arguments: str) -> str:
    """The output of a docker command.

    Raises:
        OSError: There is no docker command, or it failed.
    """
    command = ("docker", *arguments)
    try:
        done = subprocess.run(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"docker {arguments[0]}: no answer in {_ANSWER_WITHIN:g} s"
        raise OSError(msg) from error
    if done.returncode:
        msg = f"docker {arguments[0]}: {done.stderr.strip()}"
        raise OSError(msg)
    return done.stdout
