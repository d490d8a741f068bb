"""``allranks images``: the images that runs have built, shown and removed."""

import argparse
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from allranks.cli.command_parser import CommandParser
from allranks.cli.options import add_json, moment, remark, say, say_json
from allranks.errors import AllranksError, ExitCode, UsageError

if TYPE_CHECKING:
    from allranks.images.stock import StoredImage

_SECONDS_IN: Mapping[str, float] = {"": 0, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_BYTES_IN: Mapping[str, float] = {"": 0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}


def add(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks images``: what to remove, and what to keep."""
    parser.usage = "allranks images [--prune] [options]"
    group = parser.add_argument_group("removal")
    meaning = "remove images that no container, run or build needs, the least recently used first"
    group.add_argument("--prune", action="store_true", help=meaning)
    meaning = "only those unused for this long: 14d, 12h (default of --prune without --keep-size: 14d)"
    group.add_argument("--older-than", type=_age, metavar="AGE", help=meaning)
    meaning = "remove until the rest fits into SIZE: 40GB, 0"
    group.add_argument("--keep-size", type=_size, metavar="SIZE", help=meaning)
    group.add_argument("--dry-run", action="store_true", help="show what would be removed, and remove nothing")
    add_json(parser.add_argument_group("output"))
    parser.set_defaults(command=_images)


def _images(options: argparse.Namespace) -> ExitCode:
    from allranks.images import stock  # noqa: PLC0415 - a plan needs no SDK
    from allranks.images.stock import StockLimits  # noqa: PLC0415

    limits = StockLimits(unused=options.older_than, size=options.keep_size)
    if options.prune:
        act = stock.preview if options.dry_run else stock.prune
        done = act(limits, remark if options.json else say)
        if options.json:
            say_json(images=[_object(image) for image in done.left], removed=[_object(image) for image in done.removed])
        return ExitCode.OK
    if options.dry_run or limits != StockLimits():
        msg = "--older-than, --keep-size and --dry-run apply to --prune only."
        raise UsageError(msg, remedy="Add --prune, or drop them to see all images.")
    images = stock.every_image()
    if options.json:
        say_json(images=[_object(image) for image in images], removed=[])
    else:
        say(stock.render(images, time.time()))
    return ExitCode.OK


PRUNE_VARIABLE: Final = "ALLRANKS_PRUNE_IMAGES"
"""Environment variable of a host: after each run in containers, images unused for this long are removed."""


def prune_after_run(age: str, say_line: Callable[[str], None]) -> None:
    """Remove images unused for an age such as ``30d``; a failure is a remark, since the run has its results."""
    from allranks.images import stock  # noqa: PLC0415
    from allranks.images.stock import StockLimits  # noqa: PLC0415

    try:
        stock.prune(StockLimits(unused=_age(age)), say_line)
    except argparse.ArgumentTypeError as error:
        remark(f"allranks: warning: {PRUNE_VARIABLE}: {error}")
    except AllranksError as error:
        remark(f"allranks: warning: unused images stay: {error.what} {error.why}")


def _object(image: "StoredImage") -> Mapping[str, object]:
    return {
        "id": image.id,
        "names": image.names,
        "torch": image.torch or None,
        "layer": image.layer,
        "size": image.size,
        "own": image.own,
        "built": moment(image.made) if image.made else None,  # the daemon does not say
        "used": moment(image.used),
        "users": image.users,
    }


def _age(text: str) -> float:
    return _measured(text, _SECONDS_IN, "age", "14d, 12h or 30m")


def _size(text: str) -> int:
    """Parse a size into bytes, in Docker's units."""
    return int(_measured(text, _BYTES_IN, "size", "40GB, 500MB or 0"))


def _measured(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    """Parse a number with one of the units; zero may stand without one."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", text.strip(), re.ASCII | re.IGNORECASE)
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None or (not match[2] and float(match[1])):
        msg = f"{text!r} is not a valid {what}: write {example}"
        raise argparse.ArgumentTypeError(msg)
    return float(match[1]) * factor
