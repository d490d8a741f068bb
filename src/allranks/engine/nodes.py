"""What a job on several nodes takes besides its agents: a post for each, and one results folder out of several."""

import errno
import os
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO

from allranks.engine.intake import MOST_ENTRIES, Intake
from allranks.engine.spec import JobSpec, Passthrough
from allranks.harness.config import PYTEST_CACHE, RESULTS_BYTES, AgentConfig, GpuToCheck, Post, share_of

_TOKEN_BYTES = 32

_PIECE = 1 << 20


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


def bring_home(folders: Sequence[Path], results: Path, each: int = RESULTS_BYTES) -> None:
    """Put the results of all nodes into one folder: regular files, and none by way of a link.

    Ranks are numbered over all nodes, so that their files have names of their own; an agent's get its node's number.

    Args:
        folders: The results of each node's agent, the leader's first.
        results: An existing folder.
        each: How many bytes of a node are copied, over all nodes; see :class:`allranks.engine.intake.Intake`.

    Raises:
        OSError: Something cannot be copied; everything else has been.
        EngineError: Something was left out; all that fits is there.
    """
    intake = Intake(results, each * len(folders))
    errors: list[OSError] = []
    for node, folder in enumerate(folders):
        for path in _files(folder, intake, errors):
            try:
                _copy(path, PurePosixPath(path.relative_to(folder)), node, intake)
            except OSError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    intake.check()


def _files(folder: Path, intake: Intake, errors: list[OSError]) -> Iterator[Path]:
    """The regular files below a folder, as far as the intake takes any more."""
    if folder.is_symlink() or not folder.is_dir():
        errors.append(FileNotFoundError(errno.ENOENT, "there is no folder", str(folder)))
        return
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                found = sorted(islice(entries, MOST_ENTRIES + 1), key=lambda entry: entry.name)
        except OSError as error:
            errors.append(error)
            continue
        for entry in found:
            intake.count_entry()
            path = Path(entry.path)
            if entry.is_file(follow_symlinks=False):
                yield path
            elif entry.is_dir(follow_symlinks=False) and intake.takes_folder(PurePosixPath(path.relative_to(folder))):
                waiting.append(path)


def _copy(source: Path, relative: PurePosixPath, node: int, intake: Intake) -> None:
    if node and relative.parts[0] == PYTEST_CACHE:  # says nothing that the leader's does not
        return
    name = name_of(relative, node) if node else relative
    try:
        # It may have become a link since it was listed, or a pipe that would block.
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        intake.leave_out("unreadable", name, 0)
        return
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            intake.add_file(name, found.st_size, _pieces(file, found.st_size))


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """So many bytes of a file: it may grow as long as it is read."""
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece


def name_of(path: PurePosixPath, node: int) -> PurePosixPath:
    """What a file of a follower's results is called among those of the leader."""
    if path.stem.endswith("agent") and len(path.parts) == 1:
        return path.with_name(f"{path.stem}-{node}{path.suffix}")
    return path
