"""Finds engines by name, and chooses one for a run."""

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
"""The engines that ``auto`` tries, in this order. Engines of clusters are only used on request."""


def engine_names() -> tuple[str, ...]:
    """The names of all engines, those of allranks first."""
    return tuple(added_engines())


def engine_class(name: str) -> type[Engine]:
    """The class of an engine."""
    path = added_engines().get(name)
    if path is None:
        msg = f"There is no engine {name}."
        remedy = "Install the package that adds it, or choose another one."
        raise EngineError(msg, why=f"The engines are: {', '.join(engine_names())}.", remedy=remedy)
    try:
        return cast("type[Engine]", resolve_name(path))
    except (Exception, SystemExit) as error:
        msg = f"The engine {name} cannot be loaded ({path})."
        why = f"{type(error).__name__}: {error}"
        raise EngineError(msg, why=why, remedy="Repair or remove the package that adds it.") from error


def choose_engine(name: str) -> tuple[Engine, str]:
    """Connect to an engine, or choose one (``auto``); return it and the reason for the choice.

    Raises:
        EngineDeniedError: This user may not use the engine that ``auto`` would choose. The next engine is not tried,
            since that would silently run jobs without containers.
        EngineError: The named engine does not work.
    """
    if name != AUTO:
        return _detect(name, is_requested=True), "requested"
    reasons: list[str] = []
    for candidate in OF_THIS_HOST:
        try:
            engine = _detect(candidate, is_requested=False)
        except EngineDeniedError:
            raise
        except EngineError as error:
            reasons.append(_reason(error))
        else:
            return engine, "; ".join(reasons) or engine.answer
    msg = "This host has no engine."
    raise EngineError(msg, why="; ".join(reasons))


def _detect(name: str, *, is_requested: bool) -> Engine:
    """Connect to an engine, and convert any other exception into an :class:`AllranksError`."""
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


def engines_here(*, exclude: str = "", with_queues: bool = True) -> list[Engine]:
    """Connect to the working engines of this host."""
    found: list[Engine] = []
    for name in engine_names():
        with suppress(AllranksError):
            if name != exclude and (with_queues or not engine_class(name).has_queue):
                found.append(_detect(name, is_requested=False))
    return found


def check_engine(name: str, *, is_requested: bool, inventory: Inventory) -> Iterator[Finding]:
    """Check an engine for ``allranks doctor``: whether it works, can run jobs with GPUs, and has leftovers.

    Args:
        name: The engine.
        is_requested: Whether the user named it, so that its absence is a problem.
        inventory: The GPUs of its jobs.
    """
    try:
        engine = _detect(name, is_requested=is_requested)
    except AllranksError as error:
        is_absent = isinstance(error, EngineAbsentError) and not is_requested
        if is_absent:
            yield Finding(name, error.why, is_checked=False)
        else:
            yield Finding(name, f"{error.what} {error.why}".strip(), error.remedy or "See docs/extending.md.")
        return
    with closing(engine):
        yield from engine.check(inventory)
        yield from _check_leftovers(engine)


def _check_leftovers(engine: Engine) -> Iterator[Finding]:
    try:
        dead = engine.clean_up(is_dry_run=True).dead
    except EngineError as error:
        yield Finding("leftovers", f"{error.what} {error.why}", error.remedy)
        return
    for name in dead:
        yield Finding("leftovers", f"{name} belongs to a dead run", "Run: allranks clean")
    if not dead:
        yield Finding("leftovers", f"none ({engine.name})")
