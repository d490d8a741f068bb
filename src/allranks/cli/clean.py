"""``allranks clean``: removes old cache entries and leftovers of dead runs, or unused images."""

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from allranks.cli.options import json_option
from allranks.cli.parser import CommandOptions, flag, option, quantity
from allranks.cli.printing import iso_time, say, say_json, warn
from allranks.cli.variables import PRUNE_VARIABLE
from allranks.errors import AllranksError, EngineError, ExitCode, UsageError
from allranks.user_cache import KEPT_DAYS, prune_cache

if TYPE_CHECKING:
    from allranks.engines.base import Leftovers
    from allranks.images.inventory import StoredImage

_IMAGES = "to remove images"

_age: Final = quantity({"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}, "an age such as 14d, 12h or 30m")
_size: Final = quantity({"": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}, "a size such as 40GB, 500MB or 0")


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks clean``."""

    usage: ClassVar = "allranks clean [--images [options]]"

    images: bool = flag(
        "--images", _IMAGES, "remove images built by allranks that nothing needs, the least recently used first"
    )
    older_than: float | None = option(
        "--older-than AGE",
        _IMAGES,
        "only images that have not been used for this long: 14d, 12h (default without --keep-size: 14d)",
        type=_age,
    )
    keep_size: float | None = option(
        "--keep-size SIZE", _IMAGES, "stop when the rest fits into SIZE, such as 40GB or 0", type=_size
    )
    dry_run: bool = flag("--dry-run", _IMAGES, "list all images and what would be removed, but remove nothing")
    json: bool = json_option(_IMAGES)


def run(options: Options) -> ExitCode:
    """Remove leftovers, or images."""
    if options.images:
        return _clean_images(options)
    if options != Options():
        msg = "--older-than, --keep-size, --dry-run and --json need --images."
        raise UsageError(msg, remedy="Add --images, or drop them to remove leftovers of dead runs.")
    return _clean_leftovers()


def _clean_leftovers() -> ExitCode:
    from allranks.engines.registry import engines_here  # noqa: PLC0415

    found: list[Leftovers] = []
    problems: list[AllranksError] = []
    for engine in engines_here():
        try:
            with closing(engine):
                found.append(engine.clean_up())
        except EngineError as error:  # clean up the other engines first
            problems.append(error)
    removed = [name for leftovers in found for name in leftovers.dead]
    try:
        removed += [f"{entry}, not used for {KEPT_DAYS} days" for entry in prune_cache()]
    except AllranksError as error:
        problems.append(error)
    for name in removed:
        say(f"removed {name}")
    if not (removed or problems):
        say("nothing to remove: no leftovers of dead runs, and no old cache entries")
    if unknown := [name for leftovers in found for name in leftovers.unknown]:
        say(
            f"not removed: {', '.join(unknown)}. Their runs belong to another host or to another namespace of this "
            "one, and may be alive. Run `allranks clean` there, or remove these by hand if their runs have ended."
        )
    if problems:
        raise problems[0]
    return ExitCode.OK


def _clean_images(options: Options) -> ExitCode:
    from allranks.images import inventory  # noqa: PLC0415 - the Docker SDK
    from allranks.images.inventory import PruneLimits  # noqa: PLC0415

    limits = PruneLimits(unused=options.older_than, size=None if options.keep_size is None else int(options.keep_size))
    if options.dry_run and not options.json:
        say(inventory.render(inventory.our_images(), time.time()) + "\n")
    done = (inventory.preview if options.dry_run else inventory.prune)(limits, warn if options.json else say)
    if options.json:
        say_json(images=[_object(image) for image in done.left], removed=[_object(image) for image in done.removed])
    return ExitCode.OK


def prune_after_run(age: str, say_line: Callable[[str], None]) -> None:
    """Remove images unused for an age such as ``30d``; a failure is only a warning, since the run has ended."""
    from allranks.images import inventory  # noqa: PLC0415
    from allranks.images.inventory import PruneLimits  # noqa: PLC0415

    try:
        inventory.prune(PruneLimits(unused=_age(age)), say_line)
    except argparse.ArgumentTypeError as error:
        warn(f"allranks: warning: {PRUNE_VARIABLE}: {error}")
    except AllranksError as error:
        warn(f"allranks: warning: unused images were not removed: {error.what} {error.why}")


def _object(image: "StoredImage") -> Mapping[str, object]:
    return {
        "id": image.id,
        "names": image.names,
        "torch": image.torch or None,
        "layer": image.layer,
        "size": image.size,
        "own": image.own,
        "built": iso_time(image.created) if image.created else None,  # unknown to the daemon
        "used": iso_time(image.used),
        "users": image.users,
    }
