"""``allranks leases``: which run and which job holds each GPU of this host."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from allranks.commands.output import say
from allranks.errors import ExitCode

if TYPE_CHECKING:
    from allranks.schedule.leases import Holder


def add(parser: argparse.ArgumentParser) -> None:
    """Declare ``allranks leases``, which has no arguments."""
    parser.set_defaults(command=_leases)


def _leases(_options: argparse.Namespace) -> ExitCode:
    from allranks.schedule.inventory import take_inventory  # noqa: PLC0415
    from allranks.schedule.leases import holders  # noqa: PLC0415

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
