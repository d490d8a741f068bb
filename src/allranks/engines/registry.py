"""The engines by name, and the choice of one for a run."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pkgutil import resolve_name
from typing import Final, cast

from allranks.engines import AUTO
from allranks.engines.base import Engine, Finding
from allranks.engines.gpus import Inventory
from allranks.errors import AllranksError, EngineAbsentError, EngineDeniedError, EngineError
from allranks.plugin_manager import added_engines
from allranks.protocol.xml_text import clipped

OF_THIS_HOST: Final = ("docker", "process")
"""The engines that ``auto`` tries, in this order: jobs go to a cluster only if that is asked for."""


def engine_names() -> tuple[str, ...]:
    """The names of all engines, allranks' own first."""
    return tuple(added_engines())


def engine_class(name: str) -> type[Engine]:
    """The engine of that name."""
    place = added_engines().get(name)
    if place is None:
        msg = f"There is no engine {name}."
        remedy = "Install the package that adds it, or choose another one."
        raise EngineError(msg, why=f"There are: {', '.join(engine_names())}.", remedy=remedy)
    try:
        return cast("type[Engine]", resolve_name(place))
    except (Exception, SystemExit) as error:
        msg = f"The engine {name} cannot be loaded ({place})."
        why = f"{type(error).__name__}: {error}"
        raise EngineError(msg, why=why, remedy="Repair or remove the package that adds it.") from error


def choose_engine(name: str) -> tuple[Engine, str]:
    """Connect to the engine of this name, or choose one (``auto``); return it and the reason for the choice.

    Raises:
        EngineDeniedError: The engine that ``auto`` would take is there, but closed to this user. To run without it
            silently would be to run without its containers.
        EngineError: The named engine is not there.
    """
    if name != AUTO:
        return _detected(name, is_requested=True), "asked for"
    lacking: list[str] = []
    for own in OF_THIS_HOST:
        try:
            engine = _detected(own, is_requested=False)
        except EngineDeniedError:
            raise
        except EngineError as error:
            lacking.append(_reason(error))
        else:
            return engine, "; ".join(lacking) or engine.answer
    msg = "This host has no engine."
    raise EngineError(msg, why="; ".join(lacking))


def _detected(name: str, *, is_requested: bool) -> Engine:
    """Connect to an engine; whatever it raises is an :class:`AllranksError`."""
    try:
        return engine_class(name).detect(is_requested=is_requested)
    except AllranksError:
        raise
    except Exception as error:
        msg = f"The engine {name} could not be detected."
        raise EngineError(
            msg, why=f"{type(error).__name__}: {error}.", remedy="Repair or remove the package that adds it."
        ) from error


def _reason(error: EngineError) -> str:
    if isinstance(error, EngineAbsentError):
        return error.why
    what = error.what[:1].lower() + error.what[1:].rstrip(".")
    why = clipped(error.why.partition("\n")[0], 120)
    return f"{what}: {why}" if why else what


def engines_here(*, beside: str = "", with_queues: bool = True) -> list[Engine]:
    """Every engine that this host has, but the one `beside`; broken ones are left out."""
    found: list[Engine] = []
    for name in engine_names():
        with suppress(AllranksError):
            if name != beside and (with_queues or not engine_class(name).has_queue):
                found.append(_detected(name, is_requested=False))
    return found


def check_engine(name: str, *, is_requested: bool, inventory: Inventory) -> Iterator[Finding]:
    """Check an engine for ``allranks doctor``: whether it is there, what its jobs need, and what dead runs left.

    Args:
        name: The engine.
        is_requested: Whether its absence is a problem.
        inventory: The GPUs of its jobs.
    """
    try:
        engine = _detected(name, is_requested=is_requested)
    except AllranksError as error:
        is_absent = isinstance(error, EngineAbsentError) and not is_requested
        text = f"not checked: {error.why}" if is_absent else f"{error.what} {error.why}".strip()
        yield Finding(name, text, "" if is_absent else error.remedy or "See docs/extending.md.")
        return
    with closing(engine):
        yield from engine.check(inventory)
        yield from _check_leftovers(engine)


def _check_leftovers(engine: Engine) -> Iterator[Finding]:
    try:
        dead = engine.clean_up(is_dry_run=True).dead
    except EngineError as error:
        yield Finding("remains", f"{error.what} {error.why}", error.remedy)
        return
    for each in dead:
        yield Finding("remains", f"{each} belongs to a dead run", "Run: allranks clean")
    if not dead:
        yield Finding("remains", f"no dead run has leftovers ({engine.name})")
