"""Where jobs run: the contract of engines, and the two engines of the core."""

from typing import Final

AUTO: Final = "auto"
"""Selects the first engine that works on this host; see :mod:`allranks.engines.registry`."""
