"""Where jobs run: the contract of engines, and the two of the core."""

from typing import Final

AUTO: Final = "auto"
"""The name for the first engine of this host that is there: see :mod:`allranks.engines.registry`."""
