"""Looking up what the profiler saw."""

from collections.abc import Iterable
from typing import Protocol, TypeVar


class NamedEvent(Protocol):
    """What the profiler records of one function: ``torch.autograd.profiler_util.FunctionEvent`` and its kin."""

    @property
    def name(self) -> str:
        """The name that it was recorded under."""


E = TypeVar("E", bound=NamedEvent)

_SHOWN = 20


def get_function_event(function_events: Iterable[E], partial_event_name: str) -> E:
    """The first event whose name has some words in it.

    Args:
        function_events: The events of a profile, as ``profile.function_events`` has them.
        partial_event_name: Part of the name.

    Raises:
        LookupError: There is none; with the names that there are.
    """
    events = list(function_events)
    found = next((event for event in events if partial_event_name in event.name), None)
    if found is None:
        names = sorted({event.name for event in events})
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        msg = f"no profiled event has {partial_event_name!r} in its name; there are: {shown or 'none at all'}"
        raise LookupError(msg)
    return found
