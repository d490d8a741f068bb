"""What a daemon's lists say of an object, as far as it bears on whether somebody still needs it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

Listed = Mapping[str, Any]
"""A container, image, volume or network as the daemon lists it."""

_GOING = frozenset({"running", "paused", "restarting"})


def labels_of(listed: Listed) -> Mapping[str, str]:
    """Its labels."""
    return listed.get("Labels") or {}


def is_still(listed: Listed) -> bool:
    """Whether nothing runs in it; a volume in use, or a network, the daemon does not remove anyway."""
    return listed.get("State") not in _GOING


def made_at(listed: Listed) -> float:
    """When it was made, in seconds since the epoch; later than anything where the daemon does not say.

    It lists containers and images with a number, volumes and networks with a date, under a key of their own.
    """
    made = listed.get("Created", listed.get("CreatedAt"))
    if isinstance(made, int):
        return made
    try:
        return datetime.fromisoformat(str(made)).timestamp()
    except ValueError:
        return float("inf")
