"""A kind of engine: its detection on this host, the needs of its jobs, and the doctor's checks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from allranks.engine_registry import AUTO, OF_THIS_HOST, engine_names, load_engine
from allranks.engines.base import Engine
from allranks.engines.gpus import Inventory
from allranks.errors import EngineDeniedError, EngineError
from allranks.matrix.model import Image, Matrix
from allranks.protocol.xml_text import clipped

if TYPE_CHECKING:
    from docker import DockerClient


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """Where a job's Python comes from."""

    image: str | None = None  # reference of the image, on an engine that runs containers
    python: str | None = None  # interpreter, on an engine that runs processes
    python_path: tuple[Path, ...] = ()  # folders on Python's path beside those of the image or interpreter
    torch: str = field(default="", compare=False)  # the version that the matrix file states for it; empty for none


MakeEnvironment = Callable[[Image], JobEnvironment]
"""Makes the environment of all jobs of an image, which may take minutes; raises an :class:`AllranksError`."""

Progress = Callable[[str], None]
"""Receives lines while something is made."""


class Finding(NamedTuple):
    """The result of one check of this host."""

    subject: str  # what was checked, in a word or two
    text: str  # its state
    remedy: str = ""  # the one thing to do; empty if there is no problem

    @property
    def line(self) -> str:
        """The finding as it is printed."""
        mark = "PROBLEM" if self.remedy else "ok"
        told = f"{mark:7}  {self.subject}: {self.text}"
        return f"{told}\n         -> {self.remedy}" if self.remedy else told


class ConnectedEngine(Protocol):
    """An engine that this host has."""

    @property
    def name(self) -> str:
        """The name of its kind."""

    @property
    def answer(self) -> str:
        """Why a run may take it, in words, as in "a Docker daemon answers"; empty for no reason."""

    def most_jobs(self, matrix: Matrix | None = None) -> int | None:
        """The most jobs to submit at a time, on an engine that queues them and leases GPUs itself; None on others.

        Args:
            matrix: The matrix of the run; None where no run is meant.
        """

    @property
    def image_daemon(self) -> "DockerClient | None":
        """The daemon that builds the images of its jobs; None if it runs no images."""

    def capacity(self) -> tuple[int, int]:
        """Cores, and MiB of memory, for all jobs at a time.

        Raises:
            EngineError: The engine does not report it.
        """

    def cleaner(self) -> Engine:
        """An engine that lists and removes what earlier runs left behind, and starts nothing."""

    def engine_for(self, matrix: Matrix, progress: Progress, uses: ExitStack | None) -> tuple[Engine, MakeEnvironment]:
        """An engine for a run, and what makes the environments of its jobs.

        Args:
            matrix: The matrix of the run. An engine that others provide finds its own table in ``matrix.engines``.
            progress: Receives lines while environments are made.
            uses: Until it is closed, nothing that was made for the run is removed.

        Raises:
            AllranksError: Its table is wrong.
        """


class EngineKind(Protocol):
    """The entry of an engine in the registry (:mod:`allranks.engine_registry`)."""

    @property
    def name(self) -> str:
        """Its name, as in ``--engine NAME``."""

    def why_not(self) -> str:
        """Why this host seems to lack it, in words; empty if a run should try. It takes no time."""

    def connect(self) -> ConnectedEngine:
        """Connect to it.

        Raises:
            EngineError: It is not there.
        """

    def examine(self, inventory: Inventory) -> Iterator[Finding]:
        """Check its needs with these GPUs, for ``allranks doctor``; nothing is started, changed or removed."""


def engine_kind(name: str) -> EngineKind:
    """The kind of engine of that name.

    Raises:
        EngineError: There is none, or its package cannot be imported.
    """
    return cast("EngineKind", load_engine(name))


def choose_engine(name: str) -> tuple[ConnectedEngine, str]:
    """Connect to the engine of this name, or choose one (``auto``); return it and the reason for the choice.

    Raises:
        EngineDeniedError: The engine that ``auto`` would take is there, but closed to this user. To run without it
            silently would be to run without its containers.
        EngineError: The named engine is not there.
    """
    if name != AUTO:
        return engine_kind(name).connect(), "asked for"
    lacking: list[str] = []
    for own in OF_THIS_HOST:
        kind = engine_kind(own)
        if why_not := kind.why_not():
            lacking.append(why_not)
            continue
        try:
            connected = kind.connect()
        except EngineDeniedError:
            raise
        except EngineError as error:
            lacking.append(_reason(error))
            continue
        return connected, "; ".join(lacking) or connected.answer
    msg = "This host has no engine."
    raise EngineError(msg, why="; ".join(lacking))


def _reason(error: EngineError) -> str:
    what = error.what[:1].lower() + error.what[1:].rstrip(".")
    why = clipped(error.why.partition("\n")[0], 120)
    return f"{what}: {why}" if why else what


def cleaners(*, beside: str = "", queues: bool = True) -> list[Engine]:
    """Every engine that this host has, but the one `beside`, to clean up after it; broken ones are left out.

    Args:
        beside: The name of an engine.
        queues: Whether engines are among them whose jobs outlive their orchestrator.
    """
    found: list[Engine] = []
    for name in engine_names():
        with suppress(EngineError):
            kind = engine_kind(name)
            if name != beside and not kind.why_not():
                connected = kind.connect()
                if queues or connected.most_jobs() is None:
                    found.append(connected.cleaner())
    return found


def examine_remains(engine: Engine) -> Iterator[Finding]:
    """Check whether dead runs have left something behind."""
    try:
        remains = engine.remains()
    except EngineError as error:
        yield Finding("remains", f"{error.what} {error.why}", error.remedy)
        return
    for name in remains:
        yield Finding("remains", f"{name} belongs to a dead run", "Run: allranks clean")
    if not remains:
        yield Finding("remains", f"no dead run has leftovers ({engine.name})")
