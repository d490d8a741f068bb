"""``allranks clean``: what dead runs left behind on this host is removed."""

import argparse

from allranks.commands.output import say
from allranks.errors import ExitCode


def add(parser: argparse.ArgumentParser) -> None:
    """Declare ``allranks clean``, which has no arguments."""
    parser.set_defaults(command=_clean)


def _clean(_options: argparse.Namespace) -> ExitCode:
    from allranks.schedule.host import engines  # noqa: PLC0415

    there = engines()
    removed = [name for engine in there for name in engine.reap()]
    for name in removed:
        say(f"removed {name}")
    if not removed:
        say("nothing to remove: every run on this host has an owner, or left nothing behind")
    if unjudged := [name for engine in there for name in engine.unjudged()]:
        say(
            f"left alone: {', '.join(unjudged)}. Their runs belong to another host or to another name space of this "
            "one, so they may be alive: run `allranks clean` there, or remove these by hand if you know better."
        )
    return ExitCode.OK
