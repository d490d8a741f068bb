"""``allranks leases`` and ``allranks clean``: what runs hold on this host, and what dead ones left."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from allranks.commands.options import say
from allranks.errors import ExitCode

if TYPE_CHECKING:
    from allranks.schedule.gpu_leases import Holder


def add_leases(parser: argparse.ArgumentParser) -> None:
    """Declare ``allranks leases``, which has no arguments."""
    parser.set_defaults(command=_leases)


def _leases(_options: argparse.Namespace) -> ExitCode:
    from allranks.schedule.gpu_leases import holders  # noqa: PLC0415
    from allranks.schedule.gpus import take_inventory  # noqa: PLC0415

    found = holders(take_inventory().gpus)
    for gpu, holder in found.items():
        say(f"{gpu}: {_held_by(holder) if holder else 'free'}")
    if not found:
        say("this host has no GPUs that allranks could lease")
    return ExitCode.OK


def _held_by(holder: "Holder") -> str:
    if not holder.run_id:
        return "held, and nobody knows by whom"
    began = datetime.fromtimestamp(holder.since, UTC).isoformat(sep=" ", timespec="seconds")
    return f"held by {holder.job_id} of run {holder.run_id} (process {holder.pid}) since {began}"


def add_clean(parser: argparse.ArgumentParser) -> None:
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
