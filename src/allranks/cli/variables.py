"""The environment variables of commands."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allranks.errors import UsageError

ENGINE_VARIABLE: Final = "ALLRANKS_ENGINE"
"""The default of ``--engine``."""

RESULTS_VARIABLE: Final = "ALLRANKS_RESULTS"
"""The default of ``--results``."""

GPU_MODE_VARIABLE: Final = "ALLRANKS_GPU_MODE"
"""The vendor of the GPUs, and how containers access them."""

IMAGES_VARIABLE: Final = "ALLRANKS_IMAGES"
"""The folder of ``allranks build --export`` whose images runs use instead of building them."""

PRUNE_VARIABLE: Final = "ALLRANKS_PRUNE_IMAGES"
"""The age of unused images that are removed after each run in containers."""

PLAN_FILE_VARIABLE: Final = "ALLRANKS_PLAN_FILE"
"""The plan that assigns jobs to this and other machines."""

BATCH_VARIABLE: Final = "ALLRANKS_BATCH"
"""The name of this machine's batch in that plan."""


@dataclass(frozen=True)
class PlanVariables:
    """The variables of a plan; None if unset."""

    file: Path | None
    batch: str | None

    @classmethod
    def read(cls) -> "PlanVariables":
        """Read the variables of this process."""
        file, batch = (os.environ.get(name) or None for name in (PLAN_FILE_VARIABLE, BATCH_VARIABLE))
        return cls(Path(file) if file else None, batch)

    def part(self) -> tuple[Path, str] | None:
        """The plan file and the batch of this machine; None if the variables are unset.

        Raises:
            UsageError: Only one of the two variables is set.
        """
        if self.file and self.batch:
            return self.file, self.batch
        if not (self.file or self.batch):
            return None
        given, missing = (PLAN_FILE_VARIABLE, BATCH_VARIABLE) if self.file else (BATCH_VARIABLE, PLAN_FILE_VARIABLE)
        msg = f"The variable {given} is set, but {missing} is not."
        raise UsageError(msg, remedy="Set both, to a plan file and a batch of that plan, or unset both.")
