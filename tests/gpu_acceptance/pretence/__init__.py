"""What stands in for GPUs under ``--pretend``."""

from typing import Final

PRETENDS: Final = "GPU_ACCEPTANCE_PRETENDS"
"""The ids of pretended GPUs: set in every process of a pretended acceptance, and in none of a real one."""
