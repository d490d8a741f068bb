"""The environment variables of commands."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allranks.errors import UsageError

ENGINE_VARIABLE: Final = "ALLRANKS_ENGINE"
"""Where jobs run, as ``--engine``."""

RESULTS_VARIABLE: Final = "ALLRANKS_RESULTS"
"""The folder of all runs, as ``--results``."""

GPU_MODE_VARIABLE: Final = "ALLRANKS_GPU_MODE"
"""Whose GPUs jobs use, and how containers are given them."""

IMAGES_VARIABLE: Final = "ALLRANKS_IMAGES"
"""The folder of ``allranks build --export``, whose images runs use instead of building them."""

PRUNE_VARIABLE: Final = "ALLRANKS_PRUNE_IMAGES"
"""After each run in containers, images unused for this long are removed."""

PLAN_FILE_VARIABLE: Final = "ALLRANKS_PLAN_FILE"
"""The plan that divides jobs among machines, of which this is one."""

PACK_VARIABLE: Final = "ALLRANKS_PACK"
"""The part of that plan that this machine runs."""


@dataclass(frozen=True)
class PlanVariables:
    """What the variables of a plan say; each is None if it is unset."""

    file: Path | None
    pack: str | None

    @classmethod
    def read(cls) -> "PlanVariables":
        """Those of this process."""
        file, pack = (os.environ.get(name) or None for name in (PLAN_FILE_VARIABLE, PACK_VARIABLE))
        return cls(Path(file) if file else None, pack)

    def part(self) -> tuple[Path, str] | None:
        """The plan and the pack of this machine; None if it is no machine of a plan.

        Raises:
            UsageError: One is given without the other.
        """
        if self.file and self.pack:
            return self.file, self.pack
        if not (self.file or self.pack):
            return None
        given, absent = (PLAN_FILE_VARIABLE, PACK_VARIABLE) if self.file else (PACK_VARIABLE, PLAN_FILE_VARIABLE)
        msg = f"The variable {given} needs {absent}."
        raise UsageError(msg, remedy="Set both, to a plan file and a pack of that plan, or unset both.")
