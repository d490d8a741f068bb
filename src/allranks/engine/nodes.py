"""What a job on several nodes takes besides its agents: a post for each, and one results folder out of several."""

import secrets
import shutil
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from allranks.engine.drafts import draft_of
from allranks.engine.spec import JobSpec, Passthrough
from allranks.harness.config import PYTEST_CACHE, AgentConfig, GpuToCheck, Post, share_of

_TOKEN_BYTES = 32


@dataclass(frozen=True, eq=False)
class Meeting:
    """Where the agents of one job on this host meet, and how they know each other.

    Attributes:
        held: The port, which nobody else can take as long as this is open: bound with SO_REUSEADDR, and not listening.
        token: The job's.
    """

    held: socket.socket
    token: str

    def config_of(self, agent: AgentConfig, node: int) -> AgentConfig:
        """What the agent of one node is told."""
        address, port = self.held.getsockname()
        post = Post(node=node, leader=address, port=port, token=self.token)
        # On one host the leading agent sees the GPUs of all.
        return replace(agent, post=post, check_gpus=() if node else agent.check_gpus)

    def close(self) -> None:
        """Let go of the port."""
        self.held.close()


def arrange_meeting() -> Meeting:
    """A port of the loopback interface, and a token that has never been before.

    Raises:
        OSError: No port can be had.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
    except OSError:
        held.close()
        raise
    return Meeting(held, make_token())


def make_token() -> str:
    """A token that has never been before, for one job."""
    return secrets.token_hex(_TOKEN_BYTES)


def spec_of_node(spec: JobSpec, agent: AgentConfig) -> JobSpec:
    """What of a job on several nodes is one node's.

    Args:
        spec: The job.
        agent: What the node's agent is told, its post included.
    """
    node, nodes = agent.node, agent.nodes
    gpus = gpus_of(node, spec.gpus, nodes)
    return replace(
        spec,
        agent=replace(agent, check_gpus=_checked_on(gpus, agent.check_gpus)),
        gpus=gpus,
        passthrough=_passthrough_of(node, spec.passthrough, nodes),
        resources=spec.resources_on(node),
    )


def _checked_on(gpus: Sequence[str], checks: Iterable[GpuToCheck]) -> tuple[GpuToCheck, ...]:
    """Those that a node has: an agent would take another one for sick. It knows by number only its own."""
    own = [each for each in checks if each.gpu in gpus]
    return tuple(replace(each, visible=str(gpus.index(each.gpu))) if each.visible.isdecimal() else each for each in own)


def _passthrough_of(node: int, passthrough: Passthrough, nodes: int) -> Passthrough:
    """How one node is given its GPUs: AMD's have a device node each, behind the one that all of them need."""
    shared, own = passthrough.nodes[:1], gpus_of(node, passthrough.nodes[1:], nodes)
    numbers = tuple(passthrough.numbers[place] for place in share_of(node, total=len(passthrough.numbers), nodes=nodes))
    return replace(passthrough, nodes=(*shared, *own), numbers=numbers)


def gpus_of(node: int, gpus: Sequence[str], nodes: int) -> tuple[str, ...]:
    """The GPUs of one node, of those that a job holds on this host."""
    return tuple(gpus[place] for place in share_of(node, total=len(gpus), nodes=nodes))


def bring_home(folders: Sequence[Path], results: Path) -> None:
    """Put the results of all nodes into one folder.

    Ranks are numbered over all nodes, so that their files have names of their own; an agent's get its node's number.

    Args:
        folders: The results of each node's agent, the leader's first.
        results: An existing folder.

    Raises:
        OSError: Something cannot be copied; everything else has been.
    """
    leader, *others = folders
    errors: list[OSError] = []
    for attempt in ((leader, results, None), *((other, results, node) for node, other in enumerate(others, start=1))):
        try:
            _copy(*attempt)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _copy(source: Path, results: Path, node: int | None) -> None:
    if node is None:
        shutil.copytree(source, results, dirs_exist_ok=True, copy_function=_copy_file)
        return
    for path in _files(source):
        target = results / name_of(path.relative_to(source), node)
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(path, target)


def _copy_file(source: Path | str, target: Path | str) -> None:
    with draft_of(Path(target)) as draft:
        shutil.copy2(source, draft)


def _files(folder: Path) -> Iterable[Path]:
    """What is worth bringing home: pytest's cache of a follower says nothing that the leader's does not."""
    if not folder.is_dir():
        msg = f"there is no folder {folder}"
        raise FileNotFoundError(msg)
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if path.relative_to(folder).parts[0] != PYTEST_CACHE]


def name_of(path: Path, node: int) -> Path:
    """What a file of a follower's results is called among those of the leader."""
    if path.stem.endswith("agent") and len(path.parts) == 1:
        return path.with_name(f"{path.stem}-{node}{path.suffix}")
    return path
