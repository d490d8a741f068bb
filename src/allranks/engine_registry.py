"""The engines by name: allranks' own, and those of other packages (entry point ``allranks.engines``)."""

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from allranks.errors import EngineError

GROUP: Final = "allranks.engines"
"""The group of the entry points; each names an :class:`~allranks.engines.kind.EngineKind`."""

AUTO: Final = "auto"
"""The name for the first of allranks' own engines that is there."""

OWN_ENGINES: Final = {
    "docker": "allranks.engines.containers:KIND",
    "process": "allranks.engines.process_environments:KIND",
    "slurm": "allranks.engines.slurm_cluster:KIND",
}
"""Where allranks' own kinds of engines are, by name, those of this host first."""

OF_THIS_HOST: Final = ("docker", "process")
"""The engines that ``auto`` tries, in this order: jobs go to a cluster only if that is asked for."""


def engine_names() -> tuple[str, ...]:
    """The names of all engines, allranks' own first."""
    return tuple(dict.fromkeys((*OWN_ENGINES, *sorted(point.name for point in entry_points(group=GROUP)))))


def is_engine(name: str) -> bool:
    """Whether there is an engine of that name."""
    # To search the installed packages takes some milliseconds.
    return name in OWN_ENGINES or name in engine_names()


def load_engine(name: str) -> object:
    """The engine registered under that name: an :class:`~allranks.engines.kind.EngineKind`.

    Raises:
        EngineError: There is none, or its package cannot be imported.
    """
    point = EntryPoint(name, OWN_ENGINES[name], GROUP) if name in OWN_ENGINES else _added(name)
    try:
        found: object = point.load()
    except (Exception, SystemExit) as error:
        msg = f"The engine {name} cannot be loaded ({point.value})."
        why = f"{type(error).__name__}: {error}"
        raise EngineError(msg, why=why, remedy="Repair or remove the package that adds it.") from error
    return found


def _added(name: str) -> EntryPoint:
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        msg = f"There is no engine {name}."
        remedy = "Install the package that adds it, or choose another one."
        raise EngineError(msg, why=f"There are: {', '.join(engine_names())}.", remedy=remedy)
    return found[0]
