"""The environment variables of commands."""

from typing import Final

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
